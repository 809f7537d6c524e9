"""Every config of TorchTitan's registries: checked, and the debug-sized ones trained in two groups through a kill.

`make configs` runs it with the packages that some of them import: `python -m tests.real_trainers.titan.stock_configs [--only NAME ...]
[--results benchmarks/results/titan_configs.json]` writes one entry for each; with `--only`, the others stay as they are. docs/TITAN_CONFIGS.md shows them (`python -m dashboards.reference`).
"""

from __future__ import annotations

import argparse
import ast
import ctypes
import dataclasses
import importlib
import json
import math
import pkgutil
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fault_injection.sim.lane import commit, machine
from supervisor.core.model.spec import DataSpec, GroupsSpec, TitanSpec
from tests.real_trainers.titan.groups import Groups, Lighthouse, Rank, Warm, assert_equal_digests
from titan_actor import mends
from titan_actor.lift import TOKENIZER

RESULTS = Path("benchmarks/results/titan_configs.json")

SMALL = {
    "training.local_batch_size": 2,
    "training.seq_len": 64,
    "training.mixed_precision_param": "float32",
    "validator.enable": False,
    "profiler.enable_profiling": False,
    "comm.trace_buf_size": 0,
    "comm.train_timeout_seconds": 60,
    "fault_tolerance.semi_sync_method": "none",
}
"""A debug model of theirs at a size that a shared core trains."""

JOINT_STEPS = 20
"""Fewest steps that both groups make together, before and after the kill."""

STEPS = JOINT_STEPS + 6
"""The survivor takes a few alone."""

WITHIN_S = 600.0
"""Patience for a part of the training: with a vocabulary of 152,000 tokens a step takes seconds, and 20 steps some 300 s on
two processors with nothing beside them."""

CHAT_TEMPLATE = """\
{% for message in messages %}{{ message.role }}: {{ message.content }}
{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"""

EXPERIMENTS = "torchtitan.experiments.torchft.llama3.config_registry"


def settings(recipe: str, folder: Path) -> TitanSpec:
    """Returns the settings with which a config is trained here. A recipe for conversations gets some, in `folder`."""
    if ":flux_" in recipe:  # images, its own
        return TitanSpec(recipe=recipe, overrides=SMALL, steps=STEPS)
    if ":sft_" not in recipe:
        return TitanSpec(recipe=recipe, overrides=SMALL, data=DataSpec(source="python-stdlib"), steps=STEPS)
    # TorchTitan's wheel has neither its conversations nor a tokenizer with a chat template
    tokenizer, conversations = folder / "tokenizer", folder / "conversations.jsonl"
    shutil.copytree(TOKENIZER, tokenizer, dirs_exist_ok=True)
    (tokenizer / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    sums = ({"question": f"What is {a} plus {b}?", "answer": f"{a + b}."} for a in range(20) for b in range(20))
    conversations.write_text("".join(json.dumps(one) + "\n" for one in sums))
    ours = {
        "dataloader.dataset_path": "json",
        "dataloader.load_dataset_kwargs": {"data_files": str(conversations), "split": "train"},
        "hf_assets_path": str(tokenizer),
        "metrics.enable_wandb": False,
    }
    return TitanSpec(recipe=recipe, overrides={**SMALL, **ours}, steps=STEPS)


def train(groups: Groups, titan: TitanSpec) -> int:
    """Trains two groups, kills one in the middle, and returns how many steps it took with the other once it was back."""
    keeps = {name: getattr(titan, name) for name in ("recipe", "overrides", "data", "steps")}
    survivor, lost = groups.start(0, **keeps), groups.start(1, **keeps)
    lost.reached(5, commits=2, within_s=WITHIN_S)
    lost.kill()
    back = groups.start(1, generation=2, resume="peers", **keeps)
    assert [survivor.exit_code(WITHIN_S), back.exit_code(WITHIN_S)] == [0, 0], (
        survivor.log()[-1500:] + back.log()[-1500:]
    )
    assert_equal_digests(survivor, back)
    before, after = joint_steps(lost), joint_steps(back)
    assert after, "it trained with the other after its kill"
    assert len(before | after) >= JOINT_STEPS, (before, after)
    return len(after)


def joint_steps(rank: Rank) -> set[int]:
    return {line["step"] for line in rank.lines("step") if line["committed"] and line["participants"] == 2}


def names() -> Iterator[tuple[str, Any]]:
    """Yields MODULE:FUNCTION and the config, or what was raised instead of one."""
    import torchtitan.models

    models = [
        f"torchtitan.models.{one.name}.config_registry" for one in pkgutil.iter_modules(torchtitan.models.__path__)
    ]
    for name in (*models, EXPERIMENTS):
        try:
            registry = importlib.import_module(name)
        except ModuleNotFoundError as error:
            for function in functions_of(name):
                yield f"{name}:{function}", error
            continue
        for function, made in vars(registry).items():
            if function.startswith("_") or not callable(made) or getattr(made, "__module__", "") != name:
                continue
            try:
                config = made()
            except TypeError:
                continue  # a helper that takes a config
            except (ImportError, ValueError) as error:
                yield f"{name}:{function}", error
                continue
            if dataclasses.is_dataclass(config):
                yield f"{name}:{function}", config


def functions_of(registry: str) -> list[str]:
    """Returns the functions without parameters of a registry that cannot be imported; none if there is no such file."""
    import torchtitan

    file = Path(torchtitan.__path__[0], *registry.split(".")[1:]).with_suffix(".py")
    tree = ast.parse(file.read_text()).body if file.exists() else []
    defined = [one for one in tree if isinstance(one, ast.FunctionDef) and not one.name.startswith("_")]
    return [one.name for one in defined if not one.args.args]


def ranks_of(config: Any) -> int:
    """Returns the ranks for which a config is made: 8, one node's, unless its degrees leave no choice."""
    degrees = config.parallelism
    if degrees.data_parallel_shard_degree < 0:
        return 8
    names = (
        "data_parallel_shard",
        "data_parallel_replicate",
        "tensor_parallel",
        "pipeline_parallel",
        "context_parallel",
    )
    return math.prod(getattr(degrees, f"{name}_degree") for name in names)


def looked_at(recipe: str, config: Any, folder: Path) -> dict[str, Any]:
    """Returns what `launch --check` says to a config."""
    from titan_actor import check

    if isinstance(config, Exception):
        missing = getattr(config, "name", None) or ("torchao" if "torchao" in str(config) else "")
        return {"outcome": "needs", "what": missing or str(config)}
    debug, spec = "debug" in recipe, settings(recipe, folder)
    if not debug:
        # its own tokenizer is not in the wheel, and it is for nodes of eight GPUs
        larger = {
            "hf_assets_path": str(TOKENIZER),
            **spec.overrides,
            "training.seq_len": min(8192, config.training.seq_len),
        }
        spec = dataclasses.replace(spec, overrides=larger)
    problems, changes, _ = check.looked_at(
        spec, GroupsSpec(ranks_per_group=1 if debug else ranks_of(config)), here=debug
    )
    if problems:
        return {"outcome": "refused", "what": "; ".join(f"{one['key']}: {one['message']}" for one in problems)}
    return {"outcome": "checked", "changes": [change["key"] for change in changes]}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.real_trainers.titan.stock_configs", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[""], help="only configs with one of these in their name")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    mends.apply()
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # forked trainers become our children
    warm, found = Warm(), {}
    for recipe, config in names():
        if not any(part in recipe for part in given.only):
            continue
        with tempfile.TemporaryDirectory() as folder:
            entry = looked_at(recipe, config, Path(folder))
            if entry["outcome"] == "checked" and "debug" in recipe:
                lighthouse = Lighthouse()
                groups = Groups(Path(folder), warm, lighthouse)
                titan = settings(recipe, Path(folder))
                try:
                    entry |= {"outcome": "trained", "joint_steps_after_the_kill": train(groups, titan)}
                except AssertionError as error:
                    entry |= {"outcome": "fails", "what": last_line(str(error))}
                finally:
                    groups.close()
                    lighthouse.close()
        found[recipe] = entry
        print(recipe, json.dumps(entry), flush=True)
    warm.close()
    failed = [recipe for recipe, entry in found.items() if entry["outcome"] == "fails"]
    about = {
        "what": __doc__.partition("\n")[0],
        "command": "python -m tests.real_trainers.titan.stock_configs",
        "commit": commit(),
        "machine": machine(),
        "steps": STEPS,
        "overrides": SMALL,
    }
    if given.only != [""]:
        before = json.loads(given.results.read_text())
        rerun = {recipe: {**entry, "commit": about["commit"]} for recipe, entry in found.items()}
        others = {r: e for r, e in before["configs"].items() if not any(part in r for part in given.only)}
        about, found = before, others | rerun
    found = dict(sorted(found.items()))
    given.results.write_text(json.dumps({**about, "configs": found}, indent=1) + "\n")
    if failed:
        sys.exit(f"these fail at their start or in training: {', '.join(failed)}")


def last_line(text: str) -> str:
    """Returns the last line that names an error."""
    lines = [line.strip() for line in text.splitlines() if "Error" in line]
    return (lines or text.splitlines() or [""])[-1][:300]


if __name__ == "__main__":
    main()
