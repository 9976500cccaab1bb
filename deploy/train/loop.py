"""A training run in parts: each part ends after a time, and the next one goes on from the files that it wrote.

One schedule (AdamW, one cycle) runs through all parts. Its number of steps is planned in the first part, from the time
that steps take there and the time that the whole run may take. The run also keeps an average of the weights.
The average is measured and exported, and it is a usable model at any time.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from voxserve.export import safetensors_file

_Made = TypeVar("_Made")

_PLANNING_STEPS = (20, 60)  # the steps between these two are timed
_AVERAGE_DECAY = 0.999
_SAVE_SECONDS = 60
_TELL_STEPS = 100


@dataclass(frozen=True)
class Schedule:
    max_rate: float
    total_seconds: float  # training time of all parts together
    steps: int = 0  # 0: planned from total_seconds
    weight_decay: float = 0.01
    rise: float = 0.3  # the share of the steps in which the rate rises
    max_norm: float = 10.0  # the gradients' largest norm; longer gradients are scaled to it


@dataclass
class Progress:
    step: int = 0
    steps: int = 0  # the planned number; 0: not planned yet
    seconds: float = 0.0  # training time so far, in all parts
    part: int = 0


def rate(progress: float, schedule: Schedule) -> tuple[float, float]:
    """Returns the one-cycle policy's learning rate and AdamW's beta1. progress: the share of the steps done, 0 to 1."""
    if progress < schedule.rise:
        share = (1 - math.cos(math.pi * progress / schedule.rise)) / 2
        return schedule.max_rate * (0.1 + 0.9 * share), 0.95 - 0.1 * share
    share = (1 + math.cos(math.pi * min(1.0, (progress - schedule.rise) / (1 - schedule.rise)))) / 2
    return schedule.max_rate * (1e-3 + (1 - 1e-3) * share), 0.95 - 0.1 * share


class Run:
    """A model with its optimizer, the average of its weights and its progress."""

    def __init__(self, model: nn.Module, schedule: Schedule, out: Path, resume: Path | None) -> None:
        """resume: the folder of an earlier part, which may be `out` itself; None: a new run. Raises ValueError if that
        folder has no files of a part, or those of another network.
        """
        self.model = model
        self.progress = Progress()
        self._schedule = schedule
        self._out = out
        self._average = {name: value.detach().clone() for name, value in _floats(model).items()}
        # _step sets the learning rate and the betas at every step.
        decayed = [p for p in model.parameters() if p.ndim > 1]
        others = [p for p in model.parameters() if p.ndim <= 1]
        groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
        is_cuda = next(model.parameters()).is_cuda
        self.optimizer = torch.optim.AdamW(groups, lr=1e-3, weight_decay=schedule.weight_decay, fused=is_cuda)
        out.mkdir(parents=True, exist_ok=True)
        if resume is not None:
            self._load(resume)
        self.progress.part += 1

    def average(self) -> dict[str, torch.Tensor]:
        """Returns the averaged state: parameters, and the batch norms' statistics."""
        return self._average

    def train(self, loss_of: Callable[[], tuple[torch.Tensor, dict[str, torch.Tensor]]], end: float) -> None:
        """Trains until `end`, a time of time.monotonic(). loss_of draws a batch and returns its loss, and the
        parts of the loss by name, which are printed.
        """
        self.model.train()
        progress, begun = self.progress, time.monotonic()
        before, saved, measured = progress.seconds, begun, begun
        progress.steps = progress.steps or self._schedule.steps
        is_planned = progress.steps > 0
        loss: torch.Tensor | None = None
        while (not progress.steps or progress.step < progress.steps) and time.monotonic() < end:
            loss, parts = loss_of()
            self._step(loss)
            now = time.monotonic()
            progress.seconds = before + now - begun
            if not is_planned and progress.step == _PLANNING_STEPS[0]:
                _wait(loss)
                measured = time.monotonic()
            if not is_planned and progress.step == _PLANNING_STEPS[1]:
                _wait(loss)
                step_seconds = (time.monotonic() - measured) / (_PLANNING_STEPS[1] - _PLANNING_STEPS[0])
                left = self._schedule.total_seconds - progress.seconds
                progress.steps = progress.step + max(1, round(left / step_seconds))
                is_planned = True
                self._tell(f"planned {progress.steps} steps of {1e3 * step_seconds:.1f} ms")
            if progress.step % _TELL_STEPS == 0 or progress.step == 1:
                told = ", ".join(f"{name} {float(value):.4f}" for name, value in parts.items())
                self._tell(f"step {progress.step} of {progress.steps or '?'}, {progress.seconds:.0f} s: {told}")
                self._check(loss)
            if now - saved > _SAVE_SECONDS:
                self._check(loss)
                self.save()
                saved = now
        if loss is not None:
            self._check(loss)
        self.save()

    def _check(self, loss: torch.Tensor) -> None:
        if not math.isfinite(loss.item()):
            raise ValueError(f"the loss is {loss.item()} at step {self.progress.step}")

    def _step(self, loss: torch.Tensor) -> None:
        # Until the number of steps is planned, the rate stays at the start of the cycle.
        share = self.progress.step / self.progress.steps if self.progress.steps else 0.0
        learning_rate, momentum = rate(share, self._schedule)
        for group in self.optimizer.param_groups:
            group["lr"], group["betas"] = learning_rate, (momentum, 0.99)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self._schedule.max_norm)
        self.optimizer.step()
        self.progress.step += 1
        # The decay starts low, so that the average soon forgets the random first weights.
        decay = min(_AVERAGE_DECAY, self.progress.step / (self.progress.step + 10))
        now = _floats(self.model)
        torch._foreach_lerp_(list(self._average.values()), [now[name] for name in self._average], 1 - decay)

    def save(self) -> None:
        """Writes the part's files, each in one step: model.pt, average.pt, optimizer.pt (moments in bfloat16, which is
        enough to go on from) and progress.json. The largest has 4 bytes per parameter. Raises ValueError and leaves the
        files as they are if a weight is not finite.
        """
        for name, value in (*_floats(self.model).items(), *self._average.items()):
            if not value.isfinite().all():
                raise ValueError(
                    f"{name} is not finite after step {self.progress.step}: the files stay as they were"
                )
        _write(self._out / "model.pt", self.model.state_dict())
        _write(self._out / "average.pt", self._average)
        moments = self.optimizer.state_dict()["state"]
        _write(
            self._out / "optimizer.pt",
            {
                index: {key: value.bfloat16() if key.startswith("exp_avg") else value for key, value in of.items()}
                for index, of in moments.items()
            },
        )
        progress = self._out / "progress.json.part"
        progress.write_text(json.dumps(asdict(self.progress)) + "\n")
        progress.replace(self._out / "progress.json")

    def _load(self, folder: Path) -> None:
        try:
            self.progress = Progress(**json.loads((folder / "progress.json").read_text()))
            device = next(self.model.parameters()).device
            self.model.load_state_dict(torch.load(folder / "model.pt", map_location=device, weights_only=True))
            average = torch.load(folder / "average.pt", map_location=device, weights_only=True)
            moments = torch.load(folder / "optimizer.pt", map_location=device, weights_only=True)
        except (OSError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"{folder} has no part of this run to go on from: {error}") from None
        if {n: v.shape for n, v in average.items()} != {n: v.shape for n, v in self._average.items()}:
            raise ValueError(f"{folder}/average.pt is of another network")
        for name, value in average.items():
            self._average[name].copy_(value)
        whole = self.optimizer.state_dict()
        whole["state"] = {i: {k: v.float() for k, v in of.items()} for i, of in moments.items()}
        self.optimizer.load_state_dict(whole)
        self._tell(f"goes on from step {self.progress.step} of {self.progress.steps}")

    def _tell(self, text: str) -> None:
        print(text, flush=True)
        with (self._out / "log.txt").open("a") as file:
            file.write(text + "\n")


class Ahead:
    """Prepares batches on a CUDA stream of its own. The host waits for tensor sizes while it prepares a batch. On this
    stream it does not also wait for the training step that the device still computes.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def prepare(self, make: Callable[[], _Made]) -> _Made:
        """Returns what `make` returns: tensors, or lists and dataclasses with tensors."""
        if self._stream is None:
            return make()
        user = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            made = make()
        user.wait_stream(self._stream)
        for tensor in _tensors_in(made):
            tensor.record_stream(user)
        return made


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors_in(part)
    elif is_dataclass(value):
        yield from _tensors_in(list(vars(value).values()))


def write_weights(path: Path, state: dict[str, torch.Tensor]) -> None:
    """Writes a state dict as safetensors: parameters in float16, the batch norms' statistics in float32."""
    tensors: dict[str, Any] = {}
    for name, value in state.items():
        is_statistic = name.endswith(("running_mean", "running_var"))
        tensors[name] = value.detach().to(torch.float32 if is_statistic else torch.float16).cpu().numpy()
        if not np.isfinite(tensors[name]).all():
            raise ValueError(f"{name} has values that float16 cannot hold")
    safetensors_file.write(path, tensors)


def load_weights(model: nn.Module, path: Path) -> None:
    """Loads a file of write_weights into the model. Raises ValueError if a tensor is missing."""
    state = {name: torch.from_numpy(np.array(value, np.float32)) for name, value in safetensors_file.read(path).items()}
    missing = [name for name in _floats(model) if name not in state]
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing[:5])}")
    model.load_state_dict(state, strict=False)


def _floats(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value for name, value in model.state_dict().items() if value.is_floating_point()}


def _write(path: Path, state: Any) -> None:
    part = path.with_name(path.name + ".part")
    torch.save(state, part)
    part.replace(path)


def _wait(loss: torch.Tensor) -> None:
    if loss.is_cuda:
        torch.cuda.synchronize(loss.device)
