"""What a task generator returns: one user message and the steps that answer it."""

from dataclasses import dataclass, field
from typing import Any

EFFORTS = ("low", "medium", "high", "xhigh", "max")


@dataclass(frozen=True, slots=True)
class Thought:
    """The pieces of a reasoning text; the effort decides how many of them are written."""

    work: str
    plan: str = ""
    check: str = ""
    confirm: str = ""
    needed: bool = False
    """True where even low effort writes `work`, because the answer cannot be had without it."""

    def written(self, effort: str) -> str:
        """The reasoning text for one effort; empty where that effort thinks nothing."""
        pieces = {
            "low": [self.work] if self.needed else [],
            "medium": [self.work],
            "high": [self.plan, self.work],
            "xhigh": [self.plan, self.work, self.check],
            "max": [self.plan, self.work, self.check, self.confirm],
        }[effort]
        return "\n".join(piece for piece in pieces if piece)


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call that counts as right."""

    name: str
    arguments: dict[str, Any]

    def as_message(self) -> dict[str, Any]:
        return {"type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True, slots=True)
class Step:
    """One assistant step: an answer, or calls together with what the tools returned."""

    thought: Thought
    answer: str = ""
    calls: tuple[Call, ...] = ()
    results: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Exchange:
    """A user message, its tools and the assistant's steps; the last step is an answer unless the
    exchange is about the call alone. `key` names the content that the held-out split goes by."""

    kind: str
    key: str
    user: str
    steps: tuple[Step, ...]
    tools: tuple[dict[str, Any], ...] = ()
    system: str = ""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A prompt (messages and tools) and the assistant message that is right after it."""

    kind: str
    effort: str
    messages: list[dict[str, Any]]
    reply: dict[str, Any]
    tools: list[dict[str, Any]] = field(default_factory=list)
    preserve_thinking: bool = False

    @property
    def expected(self) -> dict[str, Any]:
        """{"answer": text} or {"tool_calls": [{"name", "arguments"}, ...]}."""
        if "tool_calls" in self.reply:
            return {"tool_calls": [call["function"] for call in self.reply["tool_calls"]]}
        return {"answer": self.reply["content"]}


def plain(kind: str, key: str, user: str, answer: str, thought: Thought) -> Exchange:
    """An exchange answered at once."""
    return Exchange(kind, key, user, (Step(thought, answer),))
