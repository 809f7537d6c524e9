"""Imports the upstream packages without any mend, except the one without which the import fails. Then forks a child for
each program that it reads: {"code", "without"} in, {"code", "stderr"} out, a JSON line each."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback

from titan_actor import address, mends


def child(code: str, without: str) -> None:
    os.environ[mends.WITHOUT] = without
    ended = 1
    try:
        mends.apply()
        address.use("127.0.0.1")
        exec(code, {"__name__": "__main__"})
        ended = 0
    except BaseException:  # noqa: BLE001  (whatever the program raises is its answer)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ended)


def main() -> None:
    os.environ.update(mends.ENVIRONMENT)
    for mend in mends.MENDS:
        if mend.name == "triton":
            mend.apply(None)
    import torchft.coordination  # noqa: F401
    import torchtitan.experiments.torchft.llama3.config_registry
    import torchtitan.models.common.attention  # noqa: F401

    for line in sys.stdin:
        request = json.loads(line)
        with tempfile.TemporaryFile() as told:
            pid = os.fork()
            if pid == 0:
                # answers go to stdout: the program must not
                os.dup2(told.fileno(), 1)
                os.dup2(told.fileno(), 2)
                child(request["code"], request["without"])
            _, status = os.waitpid(pid, 0)
            told.seek(0)
            text = told.read().decode(errors="replace")
        print(json.dumps({"code": os.waitstatus_to_exitcode(status), "stderr": text}), flush=True)


if __name__ == "__main__":
    main()
