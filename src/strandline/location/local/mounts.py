"""Whether a path is on a file system that other machines write to as well."""

from __future__ import annotations

import os
import re

__all__ = ["network_file_system"]

# Not among them: 9p and virtiofs, by which sandboxes and virtual machines see their host's disk.
_NETWORK = re.compile(
    r"^(nfs\d?|cifs|smb\d?|smbfs|afs|ceph|glusterfs|lustre|gpfs|beegfs|ocfs2|gfs2|davfs|coda|ncpfs"
    r"|fuse\.(sshfs|s3fs|goofys|gcsfuse|blobfuse2?|glusterfs|ceph|rclone|davfs2?|juicefs|mount-s3))$"
)
_ESCAPE = re.compile(r"\\([0-7]{3})")


def network_file_system(path: str, mountinfo: str = "/proc/self/mountinfo") -> str | None:
    """The type of the network file system that `path` is on; None if on no such, or unknown.

    `path` need not be there yet. `mountinfo` is as in proc(5); where there is none (on macOS,
    say) nothing can be seen.
    """
    real = os.path.realpath(path)
    try:
        with open(mountinfo, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.readlines()
    except OSError:
        return None
    best, kind = "", None
    for line in lines:
        mount, _, rest = line.partition(" - ")
        fields = mount.split(" ")
        if len(fields) < 5 or not rest:
            continue
        point = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[4])
        below = real == point or real.startswith(point.rstrip("/") + "/")
        # Of two mounts on one point the later covers the earlier.
        if below and len(point) >= len(best):
            best, kind = point, rest.split(" ", 1)[0]
    return kind if kind is not None and _NETWORK.match(kind) else None
