"""Writes a file for this user alone, in a folder where others may write too: a backup, a support bundle."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def private_file(out: Path, what: str) -> Iterator[BinaryIO]:
    """Opens a new file of mode 600 that replaces `out` after the block: whole or not at all. A link or a file of another
    there is replaced too. `what`: names it in errors. Raises OSError."""
    if out.exists() and not out.is_file():
        raise OSError(
            errno.EISDIR, f"{what} cannot be written: give the name of a file, not a folder or device:", str(out)
        )
    scratch = None
    try:
        # a name that no one can guess, and a file that was not there before
        handle, scratch = tempfile.mkstemp(prefix=f".{out.name}.", suffix=".tmp", dir=out.parent)
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(handle)
        os.replace(scratch, out)
    except OSError as error:
        # the original error names the scratch file, which no user knows
        raise OSError(error.errno, f"{what} cannot be written: {error.strerror}:", str(out)) from error
    finally:
        if scratch is not None:
            with contextlib.suppress(OSError):
                os.unlink(scratch)
