"""Mends TorchTitan 0.3.0 and TorchFT 0.2.0 so that they train here, one entry per fault.

Each mend names its fault and the upstream version at which it can go. Each has a test that fails without it
(`tests/real_trainers/titan/test_mends.py`). `IMPORT` mends go in before torchtitan is imported, `CONFIG` mends change the recipe's
config, `RANKS` mends that of groups of several ranks, and `BUILT` mends change the trainer object. `SCRIPT` mends are
for scripts of the user's own alone. How TorchFT is mended is in torchft_names.py. Heal state (heal.py), the loss
(replica.py) and the data (data.py) are whole modules and are listed in NOTES.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import resource
import signal
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from titan_actor import gloo, pickles, torchft_names

# No network, ever.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # TorchFT's native part logs ten lines for each step
    "RUST_LOG": "warn",
    # numpy and pyarrow start threads on import, which a fork would lose
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    # else threads of ranks that share processors spin for each other
    "OMP_WAIT_POLICY": "passive",
}

THERE, NOT_THERE, UNKNOWN = 0, 1, 2
"""Exit codes of the process that looks for a GPU."""

ASIDE_S = 60
"""Seconds after which that process is ended: a first CUDA context takes seconds, and a sick GPU hangs it."""

TRITON_USER = "torchtitan.distributed.minimal_async_ep.kernels"

NOTES = {
    "heal": "TorchFTOptimizersContainer.state_dict() is cached at start, so a healed replica takes a stale learning rate; "
    "the state hooks of FSDP race the forward pass: heal.py registers an own pair (torchft #343, torchtitan #4754)",
    "loss": "logged loss is local at one rank a group and summed over replicas at more: replica.py averages it",
    "lr": "the schedule advances on uncommitted steps: replica.py steps it on commits only",
    "step": "Trainer.step counts attempts: replica.py takes manager.current_step(), and resume sets it",
    "first_gradient": "at step 0 all replicas count as participants while those that heal add zeros, so the first "
    "gradient is divided by too many: replica.py loads the peer's state before the first forward pass",
    "checkpointer": "TorchFTCheckpointManager writes ft-replicat-N/step-* on every step and never purges: lift.py "
    "switches it off and replica.py's loop does not call it; checkpoint.py and cursor.py do its work",
    "data": "no tokenizer and no data set in the wheel: data.py and assets/",
}


@dataclass(frozen=True)
class Mend:
    """One fault of an upstream package and its workaround."""

    name: str
    fault: str
    goes: str
    """Upstream change after which it can be removed."""
    stage: Literal["import", "config", "ranks", "built", "script"]
    apply: Callable[[Any], None]


def on_gpu() -> bool:
    """Returns true if this process trains on CUDA: found, never configured. Initialises CUDA's driver here."""
    import torch

    return bool(torch.cuda.is_available())


def ask_aside_for_cuda() -> str:
    """Has a child process find out whether there is a GPU, and remembers the answer here, because torchtitan asks on
    import. Returns why it is not known; empty: it is.

    A process that forks trainers does this first. Asking opens the driver's files and starts a thread of it, and CUDA
    does not promise that these survive a fork. This was seen on an H100 with driver 580, with
    PYTORCH_NVML_BASED_CUDA_CHECK=1 too.
    """
    global _asked_aside
    if _asked_aside is None:
        _set_environment()
        import torch

        child = os.fork()
        if child == 0:
            signal.alarm(ASIDE_S)
            code = UNKNOWN
            try:
                code = THERE if torch.cuda.is_available() else NOT_THERE
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        known = code in (THERE, NOT_THERE)
        if known:
            torch.cuda.is_available = lambda: code == THERE
        _asked_aside = "" if known else f"the process that asked for CUDA ended with {code}"
    return _asked_aside


def _triton(_: Any) -> None:
    if importlib.util.find_spec("triton") is not None or TRITON_USER in sys.modules:
        return
    kernels = (
        "copy_full_counts_to_peers copy_rows_to_peers expand_topk_grad fill_combine_metadata fill_dispatch_metadata "
        "invert_flat_indices reduce_topk_slots topk_scores_grad"
    )

    def missing(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("minimal_async_ep needs triton, which is not installed")

    module = types.ModuleType(TRITON_USER)
    for kernel in kernels.split():
        setattr(module, f"{kernel}_kernel", missing)
    sys.modules[TRITON_USER] = module


def _device(_: Any) -> None:
    if on_gpu():
        return
    import torch
    import torchtitan.tools.utils as utils

    class Properties:
        total_memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    class CpuModule(types.ModuleType):
        """torch.cpu with the calls that torchtitan makes of torch.cuda."""

        def __getattr__(self, name: str) -> Any:
            return getattr(torch.cpu, name)

        def current_device(self) -> int:
            return 0

        def device_count(self) -> int:
            return 1

        def set_device(self, device: Any) -> None: ...

        def synchronize(self, device: Any = None) -> None: ...

        def get_device_name(self, device: Any = None) -> str:
            return "cpu"

        def get_device_properties(self, device: Any = None) -> type[Properties]:
            return Properties

        def reset_peak_memory_stats(self, device: Any = None) -> None: ...

        def empty_cache(self) -> None: ...

        def memory_stats(self, device: Any = None) -> dict[str, int]:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            return {
                "active_bytes.all.peak": peak,
                "reserved_bytes.all.peak": peak,
                "num_alloc_retries": 0,
                "num_ooms": 0,
            }

    utils.device_type, utils.device_module = "cpu", CpuModule("cpu_module")


def _set_timeout(_: Any) -> None:
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _set_pg_timeout

    if not hasattr(dist, "set_timeout"):
        dist.set_timeout = lambda timeout, group=None: _set_pg_timeout(timeout, group)


def _attention(_: Any) -> None:
    if on_gpu():
        return
    import torch
    import torch.distributed.tensor.experimental._context_parallel._attention as context_parallel
    import torchtitan.models.common.attention as attention
    from torch.nn.attention.flex_attention import create_block_mask, create_mask

    def dense(mask: Any, q: Any, k: Any) -> Any:
        # all layers of a step share the mask: keep it on the BlockMask, which lives as long
        kept = getattr(mask, "_dense", None)
        if kept is None or kept.shape[-2:] != (q.shape[-2], k.shape[-2]):
            kept = create_mask(mask.mask_mod, q.shape[0], 1, q.shape[-2], k.shape[-2], device=q.device)
            mask._dense = kept
        return kept

    class NoAux:
        lse = None

    def sdpa(q: Any, k: Any, v: Any, **options: Any) -> tuple[Any, type[NoAux]]:
        aux = options.get("return_aux")
        if options.get("score_mod") is not None or (aux is not None and aux.lse):
            raise NotImplementedError("score_mod and lse are not there on CPU")
        mask = dense(options["block_mask"], q, k)
        attended = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=options.get("scale"), enable_gqa=options.get("enable_gqa", False)
        )
        return attended, NoAux

    attention.FlexAttention._compiled_flex_attn = staticmethod(sdpa)
    attention._compiled_create_block_mask = create_block_mask
    context_parallel._compiled_create_block_mask = create_block_mask


def _pipeline_step(_: Any) -> None:
    from torch.distributed.pipelining import schedules

    def taking_microbatches(step: Callable[..., Any]) -> Callable[..., Any]:
        def step_microbatches(self: Any, *args: Any, **options: Any) -> Any:
            names = ("arg_mbs", "kwarg_mbs", "target_mbs")
            microbatches = {name: options.pop(name) for name in names if name in options}
            if not microbatches:
                return step(self, *args, **options)
            for stage in getattr(self, "_stages", None) or [self._stage]:
                stage.has_backward = self._has_backward
                stage.clear_runtime_states()
            options.pop("target", None)  # as eval passes it
            self._step_microbatches(**microbatches, **options)
            return None

        return step_microbatches

    for kind in (schedules.PipelineScheduleSingle, schedules.PipelineScheduleMulti):
        if "arg_mbs" not in inspect.signature(kind.step).parameters:
            kind.step = taking_microbatches(kind.step)


def _spmd_backend(config: Any) -> None:
    if config.parallelism.spmd_backend == "spmd_types":
        config.parallelism.spmd_backend = "partial_dtensor"


def _cuda_graphs(config: Any) -> None:
    config.training.disable_cuda_graphs = True


def _force_sum(trainer: Any) -> None:
    if on_gpu():
        return
    from torch.distributed.fsdp import FSDPModule

    for part in trainer.model_parts:
        for module in part.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)


MENDS = (
    Mend(
        "triton",
        "minimal_async_ep/kernels.py imports triton, which a machine without a GPU does not have",
        "a torchtitan that imports it lazily",
        "import",
        _triton,
    ),
    Mend(
        "device",
        "tools/utils.py falls back to cuda where there is no accelerator",
        "a torchtitan that falls back to cpu",
        "import",
        _device,
    ),
    Mend(
        "set_timeout",
        "distributed/utils.py calls torch.distributed.set_timeout, which torch 2.13 lacks",
        "a torch that has torch.distributed.set_timeout",
        "import",
        _set_timeout,
    ),
    Mend(
        "attention",
        "the models take flex attention only, and flex has no backward on CPU",
        "a torch whose flex attention trains on CPU, or a torchtitan llama3 with SDPA",
        "import",
        _attention,
    ),
    Mend(
        "pipeline_step",
        "a pipeline's schedule is given microbatches, which torch 2.13 takes for arguments of the model",
        "a torch whose pipeline schedules take arg_mbs",
        "import",
        _pipeline_step,
    ),
    Mend(
        "dcp_metadata",
        "DCP reads a checkpoint's .metadata by pickle: who may write there runs code in every rank",
        "a torch whose DCP reads metadata without pickle",
        "import",
        lambda _: pickles.mend_metadata(),
    ),
    Mend(
        "dcp_items",
        "DCP loads what is no tensor with weights_only=False: who may write there runs code in every rank",
        "a torch whose DCP loads items with weights_only=True",
        "import",
        lambda _: pickles.mend_items(),
    ),
    Mend(
        "data_place",
        "ParallelAwareDataloader unpickles its place: who may write into the run's folder runs code in every rank",
        "a torchtitan whose data loader gives its state to DCP unpickled",
        "import",
        lambda _: pickles.mend_data_place(),
    ),
    Mend(
        "manager_address",
        "TorchFTManager gives Manager no hostname, so it advertises gethostname() and listens on every address",
        "a torchtitan whose FaultTolerance config takes the address",
        "import",
        lambda _: torchft_names.listen_at_node(),
    ),
    Mend(
        "heal_address",
        "HTTPTransport advertises gethostname() and listens on every address",
        "a torchft whose HTTPTransport takes an address",
        "import",
        lambda _: torchft_names.heal_at_node(),
    ),
    Mend(
        "heal_proxy",
        "HTTPTransport fetches through http_proxy, which knows no node",
        "a torchft whose HTTPTransport uses no proxy",
        "import",
        lambda _: torchft_names.heal_without_proxy(),
    ),
    Mend(
        "heal_pickle",
        "HTTPTransport loads with weights_only=False: any server that answers runs code in the healing trainer",
        "a torchft that loads heal state with weights_only=True",
        "import",
        lambda _: torchft_names.heal_by_tensors_only(),
    ),
    Mend(
        "gloo_abort",
        "gloo's abort frees nothing, and TorchFT's then hangs the process in the group's destructor",
        "a torch whose gloo abort ends running collectives",
        "import",
        lambda _: gloo.mend(),
    ),
    Mend(
        "ddp_hook",
        "DistributedDataParallel asserts a future that a collective with a lost peer has not got: the survivor ends too",
        "a torchft whose comm hook survives a collective that raises in wait",
        "script",
        lambda _: torchft_names.wait_in_ddp_hook(),
    ),
    Mend(
        "spmd_backend",
        "the spmd_types backend fails at two or more ranks on torch 2.13",
        "torchtitan and torch versions that work together at two ranks with spmd_types",
        "ranks",
        _spmd_backend,
    ),
    Mend(
        "cuda_graphs",
        "the captured step would hold the replicas' all-reduce, whose group changes with the quorum (not proved: no GPU)",
        "a torchtitan that captures around the all-reduce hook",
        "config",
        _cuda_graphs,
    ),
    Mend(
        "force_sum",
        "FSDP averages with PREMUL_SUM, which gloo lacks",
        "a torch whose FSDP asks gloo for a sum by itself",
        "built",
        _force_sum,
    ),
)

OF_TORCHFT = frozenset({"manager_address", "heal_address", "heal_proxy", "heal_pickle", "gloo_abort", "ddp_hook"})

WITHOUT = "SUPERVISOR_WITHOUT_MENDS"
"""Environment variable with the mends to leave out, for the tests that show what each is for."""

_applied: set[str] = set()
_asked_aside: str | None = None


def _set_environment() -> None:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def apply() -> None:
    """Sets the environment and applies all import mends, once for each process."""
    _set_environment()
    for mend in MENDS:
        if mend.stage == "import" and mend.name not in _applied:
            _applied.add(mend.name)
            if mend.name not in _without():
                mend.apply(None)


def apply_torchft() -> None:
    """Applies the mends of TorchFT alone, for a script that uses no TorchTitan."""
    for mend in MENDS:
        if mend.name in OF_TORCHFT and mend.name not in _applied:
            _applied.add(mend.name)
            if mend.name not in _without():
                mend.apply(None)


def apply_to(stage: Literal["config", "ranks", "built"], target: Any) -> None:
    """Applies the mends of a stage to a config or a built trainer."""
    for mend in MENDS:
        if mend.stage == stage and mend.name not in _without():
            mend.apply(target)


def _without() -> set[str]:
    return set(os.environ.get(WITHOUT, "").split(","))
