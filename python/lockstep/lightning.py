"""Lightning's Trainer as a worker of a job: `Trainer(strategy=lockstep.lightning.Strategy())`.

A batch of Lightning's loop is a round of the job. A worker mostly has one run of a round, but several where work is cut finer or
moves. The number of runs, and of rounds in an epoch, is not fixed. So Lightning's closure of a batch is called for each run of the
round (`optimizer_step`; `training_step` is given the run's own batch). Then the strategy waits for the next run, or the end of the
epoch: the round is over, and the model has the parameters after it. Only then does Lightning's loop continue.

A strategy cannot set everything in the loop. So this module also sets which batch is an epoch's last, and the loop's counts of
batches and steps.

In: the module's one optimizer, its scheduler and its train dataloader, for job.prepare. Loss, hooks, callbacks, logs, validation
and checkpoints are Lightning's own.
"""

import contextlib
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.callbacks import EarlyStopping, GradientAccumulationScheduler, ModelCheckpoint, StochasticWeightAveraging
from lightning.pytorch.loops.fetchers import _DataLoaderIterDataFetcher
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from torch.utils.data import BatchSampler, DataLoader

from lockstep import _errors
from lockstep._errors import UsageError
from lockstep._init import init
from lockstep._job import Job
from lockstep._order import is_one_of

_OVER = object()  # where a run was waited for: the epoch has no further one
_OURS = ("optimizer_step", "lr_scheduler_step", "configure_gradient_clipping")  # what the job does by itself
_PRECISIONS = ("32-true", "bf16-mixed")


class _Rounds:
    """Stands in for the script's train dataloader, in Lightning's loop."""

    def __init__(self, loader: DataLoader[Any], strategy: "Strategy") -> None:
        self.loader = loader
        self._strategy = strategy

    def __iter__(self) -> Iterator[Any]:
        return self._strategy.batches()

    def __len__(self) -> int:
        """Rounds in an epoch, as far as they are known before. They have the job's batch, if job.prepare is given another one."""
        batch = self.global_batch
        batches: Any = self.loader.batch_sampler
        if batches is not None and not is_one_of(batches, BatchSampler):  # a round has one of its batches for each worker
            batch = batch or self._strategy.job._entry.workers() or 1
            return math.ceil((self._strategy._prepare.get("samples") or len(self.loader)) / batch)
        if batch is None or not isinstance(batches, BatchSampler):
            return len(self.loader)
        samples = len(batches.sampler)  # type: ignore[arg-type]
        return samples // batch if batches.drop_last else math.ceil(samples / batch)

    @property
    def global_batch(self) -> int | None:
        """Of a round, for job.prepare; None: it follows from the loader alone."""
        batch, accumulated = self._strategy.global_batch, self._strategy.accumulated
        if batch is not None or accumulated == 1:
            return batch
        batches: Any = self.loader.batch_sampler
        own = batches is not None and not is_one_of(batches, BatchSampler)
        return accumulated * ((self._strategy.job._entry.workers() or 1) if own else self.loader.batch_size or 1)

    def __getattr__(self, name: str) -> Any:
        # `loader` is not there yet where this is unpickled. The others are a StatefulDataLoader's, and Lightning would save the
        # state. Here the checkpoint's step is the position, and Lightning without a job would give the state to torchdata.
        if name in ("loader", "state_dict", "load_state_dict"):
            raise AttributeError(name)
        return getattr(self.loader, name)


def _begun() -> Job:
    """With Lightning's seed, if seed_everything has set one: a LightningCLI makes the strategy before the module."""
    seed = os.environ.get("PL_GLOBAL_SEED", "")
    return init(seed=int(seed)) if seed.isdecimal() else init()


class Strategy(SingleDeviceStrategy):
    """A strategy of Lightning's Trainer that trains as a worker of a job.

    `job`: the result of lockstep.init, if the script has called it; else the job's seed is that of seed_everything.
    `prepare`: further keywords of job.prepare.

    The batch size of the train dataloader is the batch size of a round, of all workers together. So training is the same on any
    number of workers.
    """

    strategy_name = "lockstep"
    global_rank: int
    lr_scheduler_configs: list[Any]

    def __init__(self, *, job: Job | None = None, prepare: dict[str, Any] | None = None) -> None:
        super().__init__(device="cpu")
        # A worker is all that Lightning sees of the job, whatever has started it: it would hold srun's tasks to `devices`.
        self.cluster_environment = LightningEnvironment()
        self.job = _begun() if job is None else job
        self._prepare = prepare or {}
        batch = self._prepare.get("global_batch")
        if batch is not None and (not isinstance(batch, int) or batch < 1):
            raise UsageError(f"global_batch: {batch!r} is not a whole number from 1 on")
        self.global_batch: int | None = batch
        self.accumulated = 1  # batches of the loader in a round
        self._resumed: tuple[str, int] | None = None  # Lightning's checkpoint, and its step
        self._rounds: _Rounds | None = None
        self._loader: Any = None  # what job.prepare has returned
        self._optimizer: Any = None
        self._scheduler: Any = None
        self._steps_in_epoch = False
        self._failed = False
        self._absence = contextlib.ExitStack()
        self._runs: Iterator[Any] = iter(())  # of the pass in hand
        self._looked_at_monitors = False
        self._first_pass = True  # which on_train_start begins
        self._next: Any = _OVER  # the first batch of the next round
        self._further: Any = None  # the batch of a further run of the round in hand
        self._be(self.job.wanted or 0)  # loggers ask before the job is joined

    # --- what Lightning asks of any strategy

    @property
    def is_global_zero(self) -> bool:
        return self.global_rank == 0

    def setup_environment(self) -> None:
        if not isinstance(self.accelerator, CPUAccelerator):
            raise UsageError("the Trainer has taken an accelerator, and this Strategy trains on the CPU: say accelerator='cpu'")
        super().setup_environment()

    def setup(self, trainer: pl.Trainer) -> None:
        if trainer.state.fn == TrainerFn.FITTING:
            self._accumulate(trainer)
        super().setup(trainer)
        if trainer.state.fn == TrainerFn.FITTING:
            self._join(trainer)

    def _accumulate(self, trainer: Any) -> None:
        """To Lightning's loop a round is one batch, however many of the loader's it has."""
        self.accumulated = trainer.accumulate_grad_batches
        if self.accumulated > 1 and self.global_batch is not None:
            raise UsageError("accumulate_grad_batches and global_batch of prepare both say how large a step is: leave one out")
        trainer.accumulate_grad_batches = 1

    def process_dataloader(self, dataloader: object) -> object:
        if not self._trainer.training or self._trainer.state.fn != TrainerFn.FITTING:
            return dataloader
        if self._rounds is not None:
            raise UsageError("Trainer.fit has several train dataloaders: a job has one")
        if not isinstance(dataloader, DataLoader):
            raise UsageError(f"the train dataloader is a {type(dataloader).__name__}, and no torch.utils.data.DataLoader")
        self._rounds = _Rounds(dataloader, self)
        return self._rounds

    def load_checkpoint(self, checkpoint_path: Any, *arguments: Any, **more: Any) -> dict[str, Any]:
        """Of a fit, for callbacks, hooks and the datamodule: parameters, optimizer and progress come from the job."""
        try:
            loaded: dict[str, Any] = super().load_checkpoint(checkpoint_path, *arguments, **more)
        except FileNotFoundError:
            if self._fits or self.is_global_zero:
                raise
            raise UsageError(
                f"ckpt_path: worker 0 alone writes the Trainer's checkpoints, and worker {self.global_rank} finds no "
                f"{checkpoint_path}. Write: if trainer.is_global_zero: trainer.{self._trainer.state.fn.value}(...)"
            ) from None
        if self._fits:
            self._resumed = str(checkpoint_path), int(loaded["global_step"])
            loaded.pop("loops", None)
        return loaded

    def load_optimizer_state_dict(self, checkpoint: Any) -> None:
        """It is in the job's checkpoints."""

    def _check_resumed(self) -> None:
        """The checkpoint of Lightning is of a step that the job has made."""
        if self._resumed is None:
            return
        path, step = self._resumed
        if self.job.round == 0:
            raise UsageError(
                "ckpt_path: the optimizer's state is in the job's run directory, and this job has begun anew. Start it with "
                'lockstep run --resume, or give the Strategy job=lockstep.init(run_dir="runs/a", resume=True)'
            )
        if step > self.job.round:
            raise UsageError(
                f"ckpt_path: {path} is of step {step}, and the job goes on from step {self.job.round}: give an older checkpoint, "
                "or leave ckpt_path out, so that callbacks begin anew"
            )

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """It is in the job's checkpoints."""
        return {}

    def on_exception(self, exception: BaseException) -> None:
        """Before the teardown leaves the job: the others are told why."""
        self.job.leave(f"{type(exception).__name__}: {exception}".splitlines()[0])
        self._failed = True

    def on_validation_start(self) -> None:
        super().on_validation_start()
        self._absence.enter_context(self.job.away("validation"))

    def on_validation_end(self) -> None:
        self._absence.close()
        super().on_validation_end()

    def save_checkpoint(self, *arguments: Any, **more: Any) -> None:
        with self.job.away("a checkpoint of the Trainer"):
            super().save_checkpoint(*arguments, **more)

    def teardown(self) -> None:
        self._absence.close()  # an exception in a validation
        if not self._failed and self.job.running:  # the loop was ended early
            self.job.stop("the Trainer has stopped training")
        self.job.close()
        self._trainer.accumulate_grad_batches = self.accumulated
        super().teardown()

    def on_train_start(self) -> None:
        """Lightning's loop begins with the epoch that this worker's first run is in."""
        super().on_train_start()
        epochs = self._trainer.fit_loop.epoch_progress
        self._begin_pass()
        while self._next is _OVER and self.job.running:  # one that was over before this worker joined
            epochs.increment_ready()
            epochs.increment_started()
            epochs.increment_processed()
            epochs.increment_completed()
            self._begin_pass()
        if self._next is not _OVER:
            self._check_resumed()
            self._count_steps(self.job.round)

    # --- a round

    def batches(self) -> Iterator[Any]:
        """A pass over the loader: the first batch of each round that this worker has a part in."""
        self._trainer.fit_loop._data_fetcher.length = None  # whether it is the last one tells _round_over
        if self._first_pass:
            self._first_pass = False
        else:
            self._begin_pass()
        while self._next is not _OVER:
            batch, self._next = self._next, None
            self._count_steps(self.job.round)
            self.job.seed_run()  # callbacks may have drawn
            yield batch
            if self._next is None:
                raise UsageError("Lightning's loop has made no optimizer step for a batch: each one is a round of the job")

    def training_step(self, batch: Any, *arguments: Any, **more: Any) -> Any:
        further, self._further = self._further, None
        self.job.seed_run()
        return super().training_step(batch if further is None else further, *arguments, **more)

    def optimizer_step(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any], model: Any = None, **more: Any) -> Any:
        """All runs of the round: those that are this worker's, one after the other, as they are given to it."""
        round_ = self.job.round
        while True:
            result = closure()
            call._call_callback_hooks(self._trainer, "on_before_optimizer_step", optimizer)
            call._call_lightning_module_hook(self._trainer, "on_before_optimizer_step", optimizer)
            self._optimizer.step()
            if self._scheduler is not None and not self._steps_in_epoch:
                self._scheduler.step()
            batch = next(self._runs, _OVER)
            if batch is _OVER or self.job.round != round_:
                break
            self._further = self._transferred(batch)
        self._next = batch
        self._round_over()
        return result

    # --- within

    @property
    def _fits(self) -> bool:
        return bool(self._trainer.state.fn == TrainerFn.FITTING)

    @property
    def _trainer(self) -> Any:
        module: Any = self.lightning_module
        return module.trainer

    def _be(self, rank: int) -> None:
        self.global_rank = rank_zero_only.rank = rank

    def _join(self, trainer: Any) -> None:
        module: Any = self.lightning_module
        self._refuse_unsupported(trainer, module)
        config = self.lr_scheduler_configs[0] if self.lr_scheduler_configs else None
        self.lr_scheduler_configs = []  # its steps are counted here, run by run
        loop = trainer.fit_loop
        loop.setup_data()
        if isinstance(loop._data_fetcher, _DataLoaderIterDataFetcher):
            raise UsageError("training_step(dataloader_iter): which samples come next is not for the module to say")
        if self._rounds is None:
            raise UsageError("Trainer.fit has no train dataloader, or no batches of it")
        in_epoch = len(self._rounds)
        if loop.max_epochs == -1 and loop.max_steps == -1:
            raise UsageError("max_epochs=-1: a job has an end; say max_epochs or max_steps")
        epochs = math.ceil(loop.max_steps / in_epoch) if loop.max_epochs == -1 else loop.max_epochs
        self._steps_in_epoch = config is not None and config.interval == "epoch"
        self._save_with_lightning()
        prepared = self.job.prepare(
            module,
            self.optimizers[0],
            self._rounds.loader,
            None if config is None else config.scheduler,
            epochs=epochs,
            updates=None if loop.max_steps == -1 else loop.max_steps,
            clip_grad_norm=trainer.gradient_clip_val or None,
            scheduler_steps="epoch" if self._steps_in_epoch else "update",
            **{"global_batch": self._rounds.global_batch} | self._prepare,
        )
        (_, self._optimizer, self._loader), self._scheduler = prepared[:3], (prepared[3:] or (None,))[0]
        self._be(self.job.rank)
        if len(self._loader) != in_epoch:  # job.prepare was told of another batch
            loop.max_batches = len(self._loader)
        if repr(trainer.val_check_interval) == "1.0":  # and not 1, each batch: with an epoch's last batch, whichever that is
            trainer.val_check_batch = math.inf

    def _save_with_lightning(self) -> None:
        """The job's checkpoints come at the steps of ModelCheckpoint, so that a resume finds both."""
        entry = self.job._entry
        steps = [one._every_n_train_steps for one in self._trainer.callbacks if isinstance(one, ModelCheckpoint)]
        if (entry.coordinator or entry.run_dir) and any(steps):
            self.job._settings = {"checkpoint.every_rounds": str(min(filter(None, steps)))} | self.job._settings

    def _refuse_unsupported(self, trainer: Any, module: Any) -> None:
        configs = self.lr_scheduler_configs
        precision = trainer.precision
        for wrong, words in (
            (not module.automatic_optimization, "manual optimization: lockstep wants the loss that training_step returns"),
            (len(self.optimizers) != 1, f"configure_optimizers has returned {len(self.optimizers)} optimizers: a job has one"),
            (len(configs) > 1, f"configure_optimizers has returned {len(configs)} schedulers: a job has one"),
            (any(c.reduce_on_plateau for c in configs), "ReduceLROnPlateau: a schedule follows updates"),
            (any(c.frequency != 1 for c in configs), "a scheduler's frequency other than 1"),
            (
                any(isinstance(one, GradientAccumulationScheduler) for one in trainer.callbacks),
                "GradientAccumulationScheduler: say accumulate_grad_batches, the same in all epochs",
            ),
            (
                any(isinstance(one, StochasticWeightAveraging) for one in trainer.callbacks),
                "StochasticWeightAveraging: the rate is the job's, and the callback sets it",
            ),
            (trainer.gradient_clip_algorithm == "value", "gradient_clip_algorithm='value': a job clips the norm of the update"),
            (trainer.fast_dev_run, "fast_dev_run: say max_steps"),
            (trainer.overfit_batches > 0, "overfit_batches: give the dataloader a torch.utils.data.Subset"),
            (repr(trainer.limit_train_batches) != "1.0", "limit_train_batches: an epoch has each sample once; say max_steps"),
            (trainer.reload_dataloaders_every_n_epochs > 0, "reload_dataloaders_every_n_epochs: a job has one dataset"),
            (
                # What the Trainer was told: to a strategy of one device it says 1.
                max(len(trainer._accelerator_connector._parallel_devices), trainer._accelerator_connector._num_nodes_flag) > 1,
                "devices, num_nodes: leave them out, and start the workers by lockstep run -n 2",
            ),
            (
                precision not in _PRECISIONS,
                f"precision='{precision}': parameters and gradients are float32, so one of {_PRECISIONS}",
            ),
            *((is_overridden(name, module), f"{name} of the module: the job does that by itself") for name in _OURS),
        ):
            if wrong:
                raise UsageError(words)

    def _transferred(self, batch: Any) -> Any:
        """As Lightning's loop does with the first batch of the round."""
        module: Any = self.lightning_module
        batch = self.precision_plugin.convert_input(batch)
        batch = module._on_before_batch_transfer(batch, dataloader_idx=0)
        batch = self.batch_to_device(batch, dataloader_idx=0)
        results = self._trainer._results
        results.batch, results.batch_size = batch, None
        return batch

    def _round_over(self) -> None:
        """Lightning's loop counts the round when this is done."""
        self._look_at_monitors()
        loop = self._trainer.fit_loop
        progress = loop.epoch_loop.batch_progress
        progress.is_last_batch = over = self._next is _OVER
        if over and 0 <= loop.max_steps <= self.job.metrics.round + 1:  # in the middle of an epoch, perhaps
            progress.is_last_batch = progress.current.ready >= len(self._loader)
        if over:
            self._pass_over()
        elif progress.current.ready >= loop.max_batches:  # where contributions are left out they come in a later round
            loop.max_batches = progress.current.ready + 1
        self._count_steps(self.job.metrics.round)

    def _look_at_monitors(self) -> None:
        """When the first round is over; worker 0 says it for all."""
        if self._looked_at_monitors:
            return
        self._looked_at_monitors = True
        own = {result.meta.name for result in self._trainer._results.values() if result.meta.fx == "training_step"}
        for callback in self._trainer.callbacks:
            monitor = getattr(callback, "monitor", None) if isinstance(callback, EarlyStopping) else None
            if self.is_global_zero and monitor and own & {monitor, monitor.removesuffix("_epoch"), monitor.removesuffix("_step")}:
                _errors.say(
                    f"EarlyStopping monitors {monitor}, which training_step logs of each worker's own batches, and the first "
                    'that stops ends the job for all. Monitor the job\'s number: self.log("loss_of_all", job.metrics["loss"]) in '
                    "on_train_epoch_end"
                )

    def _count_steps(self, rounds: int) -> None:
        """That are over before the one in hand, those that this worker had no part in included."""
        steps = self._trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step
        missed = rounds - steps.total.completed
        for count in (steps.total, steps.current):
            count.ready += missed
            count.completed += missed

    def _begin_pass(self) -> None:
        self._runs = iter(self._loader)
        self._next = next(self._runs, _OVER)
        if self._next is _OVER:
            self._pass_over()

    def _stop_with_the_job(self) -> None:
        """Where it was another worker's Trainer that has stopped training; else epochs without a batch would follow."""
        loop = self._trainer.fit_loop
        if self.job.ended_early and not self._trainer.should_stop:
            _errors.say(f"the job was stopped in epoch {self.job.epoch}, and worker {self.global_rank} stops training with it")
            self._trainer.should_stop = True
            loop.min_epochs = loop.epoch_loop.min_steps = None

    def _pass_over(self) -> None:
        self._stop_with_the_job()
        if self._scheduler is not None and self._steps_in_epoch:
            self._scheduler.step()
