"""What a server leaves behind when its launcher is killed with SIGKILL: shared memory and a run
folder that nobody removes. The next launcher on the machine does.

Names carry the launcher's pid, so that what is left over can be told from what is in use.
"""

import re
import shutil
import tempfile
from pathlib import Path

from beam_trt.triton.processes import all_processes

SHM = Path("/dev/shm")


def shm_prefix(pid: int, salt: str) -> str:
    """Beginning of the names in /dev/shm of a server that `pid` launched."""
    return f"beam_trt_{pid}_{salt}_"


def make_run_dir(pid: int) -> Path:
    """A new private folder for a server that `pid` launches. Its name is short, since a unix
    socket's path may have 108 bytes at most."""
    return Path(tempfile.mkdtemp(prefix=f"beam-trt-{pid}-"))


def remove_leftovers() -> list[Path]:
    """Remove, and return, what belongs to launchers that are gone, unless a process still has it on
    its command line: a server whose launcher was killed may be answering its last requests. What
    belongs to another user stays."""
    living = [info for info in all_processes() if info.is_alive]
    pids = {info.pid for info in living}
    commands = "\n".join(word for info in living for word in info.command)
    removed = []
    for path in (*SHM.glob("beam_trt_*"), *Path(tempfile.gettempdir()).glob("beam-trt-*")):
        match = re.match(r"beam([_-])trt\1(\d+)\1", path.name)
        if match is None or int(match[2]) in pids or match[0] in commands:
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            try:
                path.unlink(missing_ok=True)
            except PermissionError:
                continue
        removed.append(path)
    return removed
