"""Whether a TCP port can be listened on, and who has it if not (Linux's /proc)."""

import errno
import os
import socket
from pathlib import Path

from beam_trt.errors import ServerError


def check_port_free(host: str, port: int, flag: str) -> None:
    """Raise ServerError naming the port, its owner where this user may know it, and `flag`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise ServerError(
                    f"{host}:{port}: cannot listen there: {error.strerror}. "
                    f"Choose another address with --host or another port with {flag}."
                ) from error
            owner = port_owner(port)
            raise ServerError(
                f"port {port} is in use{f' by {owner}' if owner else ''}. "
                f"Stop that process or choose another port with {flag}."
            ) from error


def port_owner(port: int) -> str | None:
    """ "NAME (pid N)" of the process listening on `port`; None where it cannot be seen."""
    inodes = _listening_inodes(port)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            links = {_link(fd) for fd in (process / "fd").iterdir()}
            if any(f"socket:[{inode}]" in links for inode in inodes):
                return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
        except OSError:  # another user's process, or one that just ended
            continue
    return None


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:  # closed meanwhile, as the one that lists the folder is
        return ""


def _listening_inodes(port: int) -> set[str]:
    listening = "0A"  # TCP_LISTEN in /proc/net/tcp
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:  # no such protocol here
            continue
        for line in lines:
            columns = line.split()
            if columns[3] == listening and int(columns[1].rsplit(":", 1)[1], 16) == port:
                inodes.add(columns[9])
    return inodes
