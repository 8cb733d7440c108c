"""accelerate's Accelerator as a worker of a job: `from lockstep.accelerate import Accelerator` where accelerate's was.

`prepare` joins the job. As with accelerate a loader's batch is that of one process: a round has one for each worker, times
`gradient_accumulation_steps`. The first DataLoader is the one that is trained on; others are evaluated whole by each worker, so
gathering returns what a worker has.

The script does not say how many epochs it has. The job ends when the script does, or calls `end_training`.

Clipping belongs to the update, which no worker has at `clip_grad_norm_`. The limit travels with the batch, and all workers clip the
update by what its round has brought along.

`accumulate` waits at its end for the worker's next batch. If that is of another round, the update is made: then `sync_gradients` is
true until the next batch begins, and the model has the parameters after the update.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any, NoReturn

import accelerate
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader

from lockstep import _accelerate_state, _errors, _given, _order, _torch
from lockstep._around_loader import AroundLoader
from lockstep._errors import UsageError
from lockstep._init import init
from lockstep._job import Job
from lockstep._run import State

_OVER = object()  # where a batch was waited for: the pass has none any more
_EPOCHS = 1_000_000  # the script ends before
_NORM, _VALUE = "accelerate.clip_grad_norm", "accelerate.clip_grad_value"  # metrics of a batch
_ONE_CALL = "model, opt, loader, sched = accelerator.prepare(model, opt, loader, sched)"
_PLUGINS = (
    "deepspeed_plugin",
    "deepspeed_plugins",
    "fsdp_plugin",
    "megatron_lm_plugin",
    "torch_tp_plugin",
    "parallelism_config",
    "dynamo_backend",
    "dynamo_plugin",
)


class Accelerator(accelerate.Accelerator):
    """An accelerate.Accelerator whose `prepare` makes this process a worker of a job.

    `job`: the result of lockstep.init, if the script has called it. `prepare`: further keywords of job.prepare.
    """

    def __init__(self, *arguments: Any, job: Job | None = None, prepare: dict[str, Any] | None = None, **more: Any) -> None:
        precision = str(more.get("mixed_precision") or os.environ.get("ACCELERATE_MIXED_PRECISION", "no"))
        for wrong, words in (
            (
                precision not in ("no", "bf16"),
                f"mixed_precision='{precision}': parameters and gradients are float32; mixed_precision='bf16' computes in bfloat16",
            ),
            (
                _torch.accelerator() is not None and not more.get("cpu"),
                "there is a GPU, and this Accelerator trains on the CPU: say cpu=True",
            ),
            (
                more.get("step_scheduler_with_optimizer") is False,
                "step_scheduler_with_optimizer=False: leave it out, rates follow updates",
            ),
            *((more.get(name) is not None, f"{name}: leave it out, each worker of a job has the whole model") for name in _PLUGINS),
        ):
            if wrong:
                raise UsageError(words)
        self.job = init() if job is None else job
        self._prepare = prepare or {}
        self._cpu = bool(more.get("cpu"))
        _accelerate_state.be_alone(self.job.wanted or 0, self.job._entry.workers() or 1, cpu=self._cpu)
        super().__init__(*arguments, **more)
        self._batches: _Batches | None = None
        self._trained: list[nn.Parameter] = []
        self._norm = torch.tensor(float("nan"))  # of the last update that was clipped
        self._told_of_state = False

    # --- the script's objects

    def prepare(self, *objects: Any, device_placement: Any = None) -> Any:
        optimizers = [one for one in objects if isinstance(one, torch.optim.Optimizer)]
        schedulers = [one for one in objects if isinstance(one, LRScheduler | ReduceLROnPlateau)]
        loaders = [one for one in objects if isinstance(one, DataLoader)]
        found: dict[int, Any] = {id(one): self.prepare_model(one) for one in objects if isinstance(one, nn.Module)}
        if optimizers:
            if len(optimizers) > 1 or self.job.joined:
                raise UsageError(f"accelerator.prepare was given a second optimizer, and a job has one: make {_given.TOGETHER}")
            if len(schedulers) > 1:
                raise UsageError(f"accelerator.prepare was given {len(schedulers)} schedulers, and a job has one")
            model = self._model_of(optimizers[0])
            if model is None or not loaders:
                raise UsageError(f"accelerator.prepare joins the job, and takes all of it in one call: {_ONE_CALL}")
            found |= self._join(model, optimizers[0], loaders.pop(0), schedulers[0] if schedulers else None)
        elif schedulers:
            raise UsageError(f"accelerator.prepare was given a scheduler without its optimizer: {_ONE_CALL}")
        found |= {id(one): _Evaluation(one, self.job) for one in loaders}
        prepared = tuple(found.get(id(one), one) for one in objects)
        return prepared[0] if len(prepared) == 1 else prepared

    def prepare_model(self, model: Any, device_placement: Any = None, evaluation_mode: bool = False) -> Any:
        return super().prepare_model(model, device_placement, evaluation_mode=True)

    def prepare_data_loader(self, data_loader: Any, *_: Any, **__: Any) -> Any:
        return _Evaluation(data_loader, self.job)

    def prepare_optimizer(self, *_: Any, **__: Any) -> NoReturn:
        raise UsageError(f"prepare_optimizer, prepare_scheduler: {_ONE_CALL}")

    prepare_scheduler = prepare_optimizer

    def _model_of(self, optimizer: torch.optim.Optimizer) -> nn.Module | None:
        """Among those that were prepared, also before."""
        ids = {id(p) for group in optimizer.param_groups for p in group["params"]}
        return next((model for model in self._models if ids <= set(map(id, model.parameters()))), None)

    def _join(self, model: nn.Module, optimizer: Any, loader: Any, scheduler: Any) -> dict[int, Any]:
        """Returns the stand-ins of the script's objects, by their ids."""
        self._trained = [p for p in model.parameters() if p.requires_grad]
        optimizer.register_step_pre_hook(self._clip_update)
        workers, together = self.num_processes, self.dataloader_config.split_batches
        share = loader.batch_size if _order.is_one_of(loader.batch_sampler, torch.utils.data.BatchSampler) else 1
        at_once = (share or 1) * (1 if together else workers)
        times = 1 if together else workers
        stepped = scheduler if times == 1 or not isinstance(scheduler, LRScheduler) else _Several(scheduler, times)
        said = {"epochs": _EPOCHS, "global_batch": at_once * self.gradient_accumulation_steps} | self._prepare
        prepared = self.job.prepare(model, optimizer, loader, stepped, **said)
        _accelerate_state.be_alone(self.job.rank, self.job.size, cpu=self._cpu)
        self.job._run.shares(at_once, "write Accelerator(gradient_accumulation_steps=k)")
        prepared[1].step_was_skipped = False  # as accelerate's has it
        self._batches = _Batches(prepared[2], self)
        found = {id(optimizer): prepared[1], id(loader): self._batches}
        return found | ({} if scheduler is None else {id(scheduler): prepared[3]})

    # --- a batch

    @contextlib.contextmanager
    def accumulate(self, *models: Any) -> Iterator[None]:
        yield
        if self._batches is not None and self.job._run.state is State.STEPPED:
            self.gradient_state._set_sync_gradients(self._batches.advance())

    def backward(self, loss: torch.Tensor, **more: Any) -> None:
        """Without accelerate's division by the steps: the round's gradient is the mean over all its samples."""
        self.job.backward(loss, **more)

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> torch.Tensor:
        """Returns the norm of the update before, as far as there was one: that of this one is not known yet."""
        if norm_type != 2:
            raise UsageError(f"clip_grad_norm_(norm_type={norm_type}): a job clips by the norm of type 2, leave norm_type out")
        self._clip_by(_NORM, parameters, max_norm)
        return self._norm

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        self._clip_by(_VALUE, parameters, clip_value)

    def _clip_by(self, name: str, parameters: Any, limit: float) -> None:
        given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if {id(p) for p in given if p.requires_grad} != set(map(id, self._trained)):
            raise UsageError("accelerator.clip_grad_norm_ was given other parameters than the job's: give it model.parameters()")
        self.job.log({name: limit}, reduce="min")

    def _clip_update(self, *_: Any) -> None:
        """Before the optimizer's step, on all workers alike, with the gradient of the update."""
        limits = self.job.metrics
        if _NORM in limits:
            self._norm = nn.utils.clip_grad_norm_(self._trained, limits[_NORM])
        if _VALUE in limits:
            nn.utils.clip_grad_value_(self._trained, limits[_VALUE])

    # --- other processes: each worker has the whole evaluation

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        return input_data

    @contextlib.contextmanager
    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> Iterator[Any]:
        yield inputs

    # --- files and the end

    def get_state_dict(self, model: Any, unwrap: bool = True) -> Any:
        """Copies. The parameters lie in one piece of memory, and accelerate writes only one tensor of each."""
        state = super().get_state_dict(model, unwrap)
        return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in state.items()}

    def save_state(self, output_dir: str | None = None, *arguments: Any, **more: Any) -> Any:
        """Worker 0 writes the model and what was registered for checkpoints."""
        if not self.is_main_process:
            return output_dir
        if not self._told_of_state:
            self._told_of_state = True
            _errors.say(
                "save_state writes the model without the optimizer's state, which is in the job's checkpoints: to go on from there "
                "start the script with lockstep run --resume"
            )
        with self.job.away("a checkpoint of the script"):
            return super().save_state(output_dir, *arguments, **more)

    def load_state(self, *_: Any, **__: Any) -> NoReturn:
        raise UsageError(
            "load_state, skip_first_batches: leave them out, and begin the loop with epoch 0. The job goes on where it was, with "
            'lockstep run --resume or Accelerator(job=lockstep.init(run_dir="runs/a", resume=True))'
        )

    skip_first_batches = load_state

    def end_training(self) -> None:
        """Ends the job, too."""
        self.job.close()
        super().end_training()


class _Batches(AroundLoader):
    """Stands in for the train loader."""

    def __init__(self, loader: Any, accelerator: Accelerator) -> None:
        self._loader, self._accelerator = loader, accelerator
        self._runs: Iterator[Any] = iter(())
        self._next: Any = None  # the next batch, if it was waited for already

    def __iter__(self) -> Iterator[Any]:
        job, state = self._accelerator.job, self._accelerator.gradient_state
        self._runs, self._next = iter(self._loader), None
        try:
            while (batch := next(self._runs, _OVER) if self._next is None else self._next) is not _OVER:
                self._next = None
                state._set_sync_gradients(True)
                job.seed_run()  # the script may have drawn since
                yield batch
                del batch
        finally:
            self._runs.close()  # type: ignore[attr-defined]

    def advance(self) -> bool:
        """The batch in hand is done. Waits for the next one, and returns whether the update is made."""
        job = self._accelerator.job
        round_ = job.round
        self._next = next(self._runs, _OVER)
        return self._next is _OVER or job.round != round_

    def __len__(self) -> int:
        """A worker's batches in an epoch, as far as they are known before."""
        batches: int = len(self._loader) * self._accelerator.gradient_accumulation_steps
        return batches

    def set_epoch(self, epoch: int) -> None:
        """Each epoch has an order of its own anyway."""


class _Evaluation(AroundLoader):
    """A loader that is not trained on: all of it on each worker, which is away meanwhile."""

    def __init__(self, loader: Any, job: Job) -> None:
        self._loader, self._job = loader, job

    def __iter__(self) -> Iterator[Any]:
        with self._job.away("evaluation"):
            yield from self._loader


class _Several(LRScheduler):
    """A scheduler that makes several steps at once, as accelerate's does: one for each process."""

    def __init__(self, scheduler: LRScheduler, times: int) -> None:
        self.optimizer, self.last_epoch = scheduler.optimizer, scheduler.last_epoch
        self.kind, self.times = type(scheduler).__name__, times
        self._scheduler = scheduler

    def step(self, epoch: int | None = None) -> None:
        for _ in range(self.times):
            if self._scheduler._step_count <= getattr(self._scheduler, "total_steps", float("inf")):
                self._scheduler.step()
