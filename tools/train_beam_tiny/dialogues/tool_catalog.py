"""The tool families the dialogues use."""

from .tool_everyday import EVERYDAY
from .tool_work import WORK

FAMILIES = EVERYDAY + WORK
