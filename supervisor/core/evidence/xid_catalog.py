"""Meanings of the numbers by which NVIDIA's driver reports errors of a GPU (Xid), and the rung that follows from each.

Source: NVIDIA, Xid Errors, "Analyzing Xid Errors with the Xid Catalog"
(https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), as it was in October 2025. Its column
"Resolution Bucket (Immediate Action)" is `bucket` here; the meanings are in our words. It is for Ampere and newer. An
Xid that is not here has no documented action there, or is unused: it is shown, and nothing is done for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from supervisor.core.model.kinds import Rung

Bucket = Literal[
    "IGNORE", "RESTART_APP", "RESET_GPU", "RESTART_BM", "RESTART_VM", "CHECK_MECHANICALS",
    "WORKFLOW_XID_45", "WORKFLOW_XID_48", "WORKFLOW_NVLINK_ERR", "WORKFLOW_NVLINK5_ERR", "XID_154",
]  # fmt: skip

RUNGS: Mapping[Bucket, Rung | None] = {
    "IGNORE": None,
    "RESTART_APP": Rung.RESTART,
    "RESET_GPU": Rung.REPLACE,
    "RESTART_BM": Rung.REPLACE,
    "RESTART_VM": Rung.REPLACE,
    "CHECK_MECHANICALS": Rung.REPLACE,
    "WORKFLOW_XID_45": None,
    "WORKFLOW_XID_48": Rung.REPLACE,
    "WORKFLOW_NVLINK_ERR": Rung.REPLACE,
    "WORKFLOW_NVLINK5_ERR": Rung.RESTART,
    "XID_154": None,
}
"""Rung of a group that fails with an Xid of the bucket. RESTART: as for any failure, the process is started again in
place. REPLACE: the GPU needs a reset, its machine a restart or a hand. We do none of these while others work there, so
the group moves. WORKFLOW_XID_45: it follows another one, or a process that was killed. WORKFLOW_XID_48: reset; drain
first if rows must be remapped. WORKFLOW_NVLINK_ERR: by bits of the message, a reset in most cases.
WORKFLOW_NVLINK5_ERR: restart, unless the driver asks for more, which NVML then reports. XID_154: announces just that
NVML reports something new."""

AT_ONCE = frozenset({79, 95})
"""Xids after which nothing on that GPU goes on, so no one waits for the process to notice. The bus does not reach it
any more, or memory that may be wrong was used (NVIDIA, "GPU Memory Error Management": all work there is ended, a reset
is due)."""


@dataclass(frozen=True, slots=True)
class Xid:
    """One Xid: its meaning and its bucket."""

    meaning: str
    bucket: Bucket

    @property
    def rung(self) -> Rung | None:
        return RUNGS[self.bucket]


_COPY = Xid("an error of a copy engine", "RESTART_APP")
_NVLINK5 = Xid("NVLink error", "WORKFLOW_NVLINK5_ERR")

XIDS: Mapping[int, Xid] = {
    8: Xid("a channel made no progress", "RESTART_APP"),
    11: Xid("an invalid command stream", "RESTART_APP"),
    13: Xid("an exception of the compute engine, mostly the program's own", "RESTART_APP"),
    25: Xid("an invalid command stream", "RESTART_APP"),
    31: Xid("a page fault of the GPU, mostly the program's own", "RESTART_APP"),
    32: Xid("a corrupted command stream", "RESTART_APP"),
    37: Xid("a firmware error of the driver", "IGNORE"),
    38: Xid("a firmware error of the driver", "IGNORE"),
    **dict.fromkeys((39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)), _COPY),
    43: Xid("the channel of a program was reset", "IGNORE"),
    44: Xid("a fault in a context switch", "IGNORE"),
    45: Xid("a program's work was removed after another error, or because it was killed", "WORKFLOW_XID_45"),
    46: Xid("the GPU stopped processing", "RESET_GPU"),
    48: Xid("memory error that ECC cannot correct", "WORKFLOW_XID_48"),
    54: Xid("its power cable is not connected", "CHECK_MECHANICALS"),
    62: Xid("its micro-controller halted", "RESET_GPU"),
    63: Xid("a memory row will be remapped", "IGNORE"),
    64: Xid("a memory row could not be remapped", "RESET_GPU"),
    66: Xid("an illegal access by the driver", "IGNORE"),
    67: Xid("an illegal access by the driver", "IGNORE"),
    68: Xid("an error of the video decoder", "RESTART_APP"),
    69: Xid("an error of the compute engine's class", "RESTART_APP"),
    74: Xid("NVLink error", "WORKFLOW_NVLINK_ERR"),
    79: Xid("it has fallen off the bus", "RESTART_BM"),
    80: Xid("corrupted data was sent to it", "RESTART_APP"),
    92: Xid("many memory errors that ECC corrected", "IGNORE"),
    93: Xid("its InfoROM is wearing out", "IGNORE"),
    94: Xid("memory error, contained to one program", "RESTART_APP"),
    95: Xid("memory error, not contained", "RESET_GPU"),
    109: Xid("a context switch did not end in time", "RESET_GPU"),
    110: Xid("a security fault", "RESET_GPU"),
    119: Xid("its system processor (GSP) does not answer", "RESET_GPU"),
    120: Xid("an error of its system processor (GSP)", "RESET_GPU"),
    121: Xid("an error of the link to the CPU (C2C)", "IGNORE"),
    136: Xid("an NVLink could not be trained", "RESET_GPU"),
    137: Xid("an NVLink access that is not allowed", "IGNORE"),
    140: Xid("memory error that was not recovered", "RESET_GPU"),
    141: Xid("an error of CUDA's fast path", "IGNORE"),
    143: Xid("it could not be initialised", "RESET_GPU"),
    **dict.fromkeys(range(144, 151), _NVLINK5),
    151: Xid("an error of key rotation", "RESTART_VM"),
    154: Xid("what it needs to recover has changed", "XID_154"),
    155: Xid("a software error of NVLink", "RESET_GPU"),
    156: Xid("a resource was retired", "RESET_GPU"),
    157: Xid("a resource could not be retired", "IGNORE"),
    158: Xid("a fatal time limit passed in it", "RESET_GPU"),
    160: Xid("a memory channel was retired", "IGNORE"),
    161: Xid("a memory channel could not be retired", "IGNORE"),
}


def meaning(code: int) -> str:
    """Meaning of an Xid in a few words, after a comma; empty if it is unknown."""
    return f", {XIDS[code].meaning}" if code in XIDS else ""
