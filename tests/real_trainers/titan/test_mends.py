"""Each mend: the fault without it, and none with it. A fault that upstream fixed fails here, and the mend can go."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Set
from importlib.metadata import version
from typing import Any

import pytest

from supervisor.core.model.spec import TorchFTSpec
from tests.real_trainers.titan.groups import Groups, Rank
from titan_actor import mends

PROVED_BELOW = {
    "triton",
    "device",
    "set_timeout",
    "attention",
    "pipeline_step",
    "manager_address",
    "heal_address",
    "heal_proxy",
    "heal_pickle",
    "dcp_metadata",
    "dcp_items",
    "data_place",
    "gloo_abort",
    "ddp_hook",
    "spmd_backend",
    "cuda_graphs",
    "force_sum",
}

NEEDLESS: Set[str] = (
    {"set_timeout", "pipeline_step", "spmd_backend"} if version("torch").startswith("2.14.") else frozenset()
)
"""Mends that this torch does not need, but 2.13 does."""


def test_every_mend_is_proved_and_says_when_it_can_go() -> None:
    assert {mend.name for mend in mends.MENDS} == PROVED_BELOW
    for mend in mends.MENDS:
        assert mend.fault
        assert mend.goes


@pytest.fixture(scope="module")
def bare() -> Iterator[Bare]:
    process = Bare()
    yield process
    process.close()


class Bare:
    """A process that has imported the upstream packages and mended nothing; forks one child for each program."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.real_trainers.titan.bare"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, code: str, without: str) -> tuple[int, str]:
        """Exit code and stderr of a program that applies all mends but one."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"code": textwrap.dedent(code), "without": without}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return int(answer["code"]), str(answer["stderr"])

    def fails_only_without(self, mend: str, code: str, fault: str) -> None:
        """Checks that the program succeeds with the mend, and fails with `fault` in its last lines without it."""
        ended, told = self.run(code, "")
        assert ended == 0, told[-3000:]
        if mend in NEEDLESS:
            return
        ended, told = self.run(code, mend)
        assert ended != 0, f"{mend}: the fault is gone, so the mend can go"
        assert fault in told[-1500:], told[-1500:]

    def close(self) -> None:
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(30)


@pytest.mark.skipif(mends.importlib.util.find_spec("triton") is not None, reason="triton is installed")
def test_triton() -> None:
    # with it every other test here imports torchtitan
    program = "from titan_actor import mends; mends.apply(); import torchtitan.distributed.minimal_async_ep"
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env={**os.environ, mends.WITHOUT: "triton"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode != 0, "the fault is gone, so the mend can go"
    assert "No module named 'triton'" in ended.stderr


def test_device(bare: Bare) -> None:
    code = """
    import torchtitan.tools.utils as utils
    assert (utils.device_type, utils.device_module.device_count()) == ("cpu", 1), utils.device_type
    """
    bare.fails_only_without("device", code, "AssertionError: cuda")


def test_set_timeout(bare: Bare) -> None:
    code = """
    from datetime import timedelta
    import torch.distributed as dist
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    import torchtitan.distributed.utils as utils, torchtitan.tools.utils as tools
    # it was imported before the device was mended
    utils.device_module = tools.device_module
    class Dims:
        def get_all_one_dimensional_meshes(self): return {}
    utils.set_pg_timeouts(timedelta(seconds=5), Dims())
    """
    bare.fails_only_without("set_timeout", code, "has no attribute 'set_timeout'")


def test_attention(bare: Bare) -> None:
    code = """
    import torch
    from torch.nn.attention.flex_attention import create_block_mask
    from torchtitan.models.common.attention import FlexAttention, get_causal_mask_mod
    mask = create_block_mask(get_causal_mask_mod(), 1, None, 128, 128, device="cpu")
    q, k, v = (torch.randn(1, 128, 2, 16, requires_grad=True) for _ in range(3))
    out = FlexAttention(FlexAttention.Config())(q, k, v, attention_masks=mask)
    plain = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True)
    assert torch.allclose(out, plain.transpose(1, 2), atol=1e-5)
    out.sum().backward()
    assert q.grad is not None
    """
    bare.fails_only_without("attention", code, "does not support backward on CPU")


def test_pipeline_step(bare: Bare) -> None:
    code = """
    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import ScheduleGPipe
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    stage = PipelineStage(torch.nn.Linear(4, 4), 0, 1, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2, loss_fn=lambda out, target: (out - target).sum())
    losses, part = [], torch.ones(1, 4)
    given = {"arg_mbs": [(part,), (part,)], "kwarg_mbs": [{}, {}], "target_mbs": [part, part]}
    schedule.step(**given, losses=losses, return_outputs=False)
    assert len(losses) == 2
    losses.clear()
    with torch.no_grad():
        schedule.eval(**given, losses=losses)
    assert len(losses) == 2
    assert schedule.step(torch.ones(2, 4), target=torch.ones(2, 4), losses=losses).shape == (2, 4), "a whole batch"
    """
    bare.fails_only_without("pipeline_step", code, "arg_mbs")


MANAGER = """
    import os
    from datetime import timedelta
    from torch.distributed import TCPStore
    import torchft
    from torchft.coordination import LighthouseServer
    server = LighthouseServer(bind="127.0.0.1:0", min_replicas=1)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(), load_state_dict=None, state_dict=None, min_replica_size=1, rank=0, world_size=1,
        store_addr="127.0.0.1", store_port=store.port, lighthouse_addr="http://127.0.0.1:" + server.address().rpartition(":")[2],
    )
    manager_at, heal_at = store.get("manager_addr").decode(), manager._checkpoint_transport.address()
"""


def test_manager_address(bare: Bare) -> None:
    code = MANAGER + '    assert manager_at.startswith("http://127.0.0.1:"), manager_at\n    os._exit(0)\n'
    bare.fails_only_without("manager_address", code, "AssertionError: http://")


def test_heal_address(bare: Bare) -> None:
    code = MANAGER + '    assert heal_at.startswith("http://127.0.0.1:"), heal_at\n    os._exit(0)\n'
    bare.fails_only_without("heal_address", code, "AssertionError: http://")


def test_heal_proxy(bare: Bare) -> None:
    code = """
    import os, torch
    os.environ |= {"http_proxy": "http://127.0.0.1:9", "no_proxy": "", "NO_PROXY": ""}
    from datetime import timedelta
    from torchft.checkpointing import HTTPTransport
    transport = HTTPTransport(timeout=timedelta(seconds=10), num_chunks=0)
    transport.send_checkpoint([1], 3, {"user": torch.ones(2)}, timedelta(seconds=10))
    assert transport.recv_checkpoint(0, transport.metadata(), 3, timedelta(seconds=10))["user"].sum() == 2
    os._exit(0)
    """
    bare.fails_only_without("heal_proxy", code, "Connection refused")


def test_heal_pickle(bare: Bare) -> None:
    """A peer's answer must not run code here."""
    code = """
    from datetime import timedelta
    from torchft.checkpointing import HTTPTransport
    class Evil:
        def __reduce__(self):
            return (exec, ("raise SystemError('code of the peer ran')",))
    transport = HTTPTransport(timeout=timedelta(seconds=10), num_chunks=0)
    transport.send_checkpoint([1], 3, {"user": Evil()}, timedelta(seconds=10))
    try:
        transport.recv_checkpoint(0, transport.metadata(), 3, timedelta(seconds=10))
    except Exception as error:
        if "code of the peer ran" in str(error):
            raise
    import os; os._exit(0)
    """
    bare.fails_only_without("heal_pickle", code, "code of the peer ran")


EVIL = """
class Evil:
    def __reduce__(self):
        return (exec, ("raise SystemError('code of the file ran')",))
def checked(load, *names):
    try:
        load()
    except BaseException as error:
        print(error)
        if "code of the file ran" in str(error):
            raise
        assert all(name in str(error) for name in names), str(error)
    else:
        raise AssertionError("it was loaded")
"""


def test_dcp_metadata(bare: Bare) -> None:
    """A writer in the folder of a checkpoint runs no code; a real one is read, with shards and plain values."""
    code = f"""{EVIL}
import pickle, tempfile, torch
from pathlib import Path
import torch.distributed.checkpoint as dcp
folder = Path(tempfile.mkdtemp())
def state():
    return {{"a": torch.ones(2, 3, dtype=torch.bfloat16), "b": {{"c": [1, "x", torch.zeros(2)], "lr": 0.5}}}}
dcp.save(state(), storage_writer=dcp.FileSystemWriter(folder))
read = state() | {{"b": {{"c": [2, "y", torch.ones(2)], "lr": 0.1}}}}
dcp.load(read, storage_reader=dcp.FileSystemReader(folder))
assert read["b"]["c"][:2] == [1, "x"] and read["b"]["lr"] == 0.5
(folder / ".metadata").write_bytes(pickle.dumps(Evil()))
load = lambda: dcp.load(state(), storage_reader=dcp.FileSystemReader(folder))
checked(load, str(folder / ".metadata"), "builtins.exec", "add_safe_globals")
from fractions import Fraction
(folder / ".metadata").write_bytes(pickle.dumps(Fraction(1, 2)))
checked(load, "holds fractions.Fraction")
torch.serialization.add_safe_globals([Fraction])
checked(load, "'Fraction' object has no attribute 'storage_meta'")
"""
    bare.fails_only_without("dcp_metadata", code, "code of the file ran")


def test_dcp_items(bare: Bare) -> None:
    """Values that are no tensors lie in pickles of their own."""
    code = f"""{EVIL}
import tempfile, torch
import torch.distributed.checkpoint as dcp
folder = tempfile.mkdtemp()
dcp.save({{"train": {{"step": Evil()}}}}, storage_writer=dcp.FileSystemWriter(folder))
load = lambda: dcp.load({{"train": {{"step": 1}}}}, storage_reader=dcp.FileSystemReader(folder))
checked(load, "train.step", "builtins.exec", "add_safe_globals")
"""
    bare.fails_only_without("dcp_items", code, "code of the file ran")


def test_data_place(bare: Bare) -> None:
    """The place in the data is a pickle in the run's folder. One with workers of its own and shuffling is read."""
    code = f"""{EVIL}
import pickle, random, torch
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchtitan.components.dataloader import ParallelAwareDataloader
class Data(Dataset):
    def __len__(self): return 8
    def __getitem__(self, n): return n
    def state_dict(self): return {{"random": random.getstate(), "tensor": torch.arange(3), "seen": {{1, 2}}}}
    def load_state_dict(self, state): self.state = state
def loader(workers):
    made = ParallelAwareDataloader.__new__(ParallelAwareDataloader)
    made.dp_world_size, made.dp_rank, made._rank_id = 1, 0, "dp_rank_0"
    StatefulDataLoader.__init__(made, Data(), shuffle=True, num_workers=workers)
    return made
for workers in (0, 2):
    one, two = loader(workers), loader(workers)
    places = iter(one)
    for _ in range(3): next(places)
    two.load_state_dict(one.state_dict())
    assert [int(n) for n in two] == [int(n) for n in places]
checked(lambda: loader(0).load_state_dict({{"dp_rank_0": pickle.dumps(Evil()), "world_size": 1}}), "builtins.exec")
inner = pickle.dumps(torch.arange(3)).replace(b"_load_from_bytes", b"_load_from_bytez")
checked(lambda: loader(0).load_state_dict({{"dp_rank_0": inner, "world_size": 1}}), "_load_from_bytez")
"""
    bare.fails_only_without("data_place", code, "code of the file ran")


def test_gloo_abort(bare: Bare) -> None:
    code = """
    import os, threading, time, torch
    from datetime import timedelta
    from torch.distributed import AllreduceOptions, TCPStore
    from torchft import ProcessGroupGloo
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    groups = [ProcessGroupGloo(timeout=timedelta(seconds=20)) for _ in range(2)]
    starts = [threading.Thread(target=g.configure, args=(f"127.0.0.1:{store.port}/x", "r", n, 2)) for n, g in enumerate(groups)]
    [s.start() for s in starts]; [s.join() for s in starts]
    freed = threading.Event()
    def collective():
        try:
            groups[0].allreduce([torch.ones(8)], AllreduceOptions()).wait()
        except RuntimeError:
            freed.set()
    threading.Thread(target=collective, daemon=True).start()
    # whatever holds the GIL, this ends the process
    import faulthandler; faulthandler.dump_traceback_later(8, exit=True)
    time.sleep(0.5)
    groups[0].abort()
    assert freed.wait(5), "the collective still waits"
    os._exit(0)
    """
    # whichever comes first: it waits on, or the whole process hangs
    ended, told = bare.run(code, "")
    assert ended == 0, told[-2000:]
    ended, told = bare.run(code, "gloo_abort")
    assert ended != 0, "the fault is gone, so the mend can go"
    assert "the collective still waits" in told or "Timeout (0:00:08)" in told, told[-2000:]


def outcome(rank: Rank) -> tuple[int, str]:
    return rank.exit_code(), rank.log()[-6000:]


@pytest.mark.trainers
def test_no_checkpoints_on_every_step(groups: Groups) -> None:
    """TorchTitan's own checkpointer would leave a folder for each step, in spite of the recipe."""
    code, log = outcome(
        groups.start(0, groups=1, steps=3, recipe="tests.real_trainers.titan.recipes:with_own_checkpoints")
    )
    assert code == 0, log
    assert not list(groups.top.rglob("ft-replicat-*"))


@pytest.mark.trainers
@pytest.mark.parametrize(
    ("mend", "fault"), [("spmd_backend", ""), ("force_sum", "PREMUL_SUM")], ids=["spmd_backend", "force_sum"]
)
def test_two_ranks_need(groups: Groups, mend: str, fault: str) -> None:
    if mend in NEEDLESS:
        pytest.skip("this torch does not need it")
    quick = TorchFTSpec(process_group_timeout_ms=5000)
    ranks = groups.start_group(0, 2, groups=1, steps=2, torchft=quick, environment={mends.WITHOUT: mend})
    results: list[tuple[int, str]] = [outcome(rank) for rank in ranks]
    assert all(code == 1 for code, _ in results), "the fault is gone, so the mend can go"
    errors: list[Any] = [rank.progress.error if rank.progress else "" for rank in ranks]
    assert any(fault in error.upper() for error in errors), errors


def test_cuda_graphs(bare: Bare) -> None:
    """The test covers the setting alone: the fault itself needs a GPU and was not seen."""
    code = """
    from supervisor.core.model.spec import TitanSpec
    from titan_actor import config
    assert config.from_spec(TitanSpec()).training.disable_cuda_graphs, "they would be captured"
    """
    bare.fails_only_without("cuda_graphs", code, "they would be captured")


@pytest.mark.trainers
def test_upstreams_heal_state_is_stale(groups: Groups) -> None:
    """The reason for heal.py: TorchTitan's optimizer state_dict() keeps the learning rate of the start."""
    code, log = outcome(
        groups.start(0, groups=1, steps=4, recipe="tests.real_trainers.titan.recipes:that_looks_at_heal_state")
    )
    assert code == 0, log
    assert "upstream is stale, ours is live" in log


def test_ddp_hook(bare: Bare) -> None:
    """A peer that ends inside the collective makes the wait raise."""
    code = """
        import types
        import torch
        from titan_actor import mends
        mends.apply_torchft()
        from torchft.ddp import DistributedDataParallel
        from torchft.manager import _ManagedWork

        class Lost:
            def wait(self):
                raise RuntimeError("Connection closed by peer")

        errors = []
        logger = types.SimpleNamespace(exception=print)
        manager = types.SimpleNamespace(_logger=logger, report_error=errors.append)
        manager.allreduce = lambda tensor: _ManagedWork(manager, Lost(), tensor)
        bucket = types.SimpleNamespace(buffer=lambda: torch.ones(2))
        DistributedDataParallel._comm_hook(manager, bucket).wait()
        assert len(errors) == 1
        DistributedDataParallel(manager, torch.nn.Linear(1, 1))  # torch takes the hook
    """
    bare.fails_only_without("ddp_hook", code, "assert fut._fut")
