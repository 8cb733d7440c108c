"""transformers' Trainer as a worker of a job: `lockstep.huggingface.Trainer` where `transformers.Trainer` was.

This Trainer differs in three things. Loader, optimizer and scheduler come from job.prepare. The pass over an epoch counts rounds
of the job instead of batches, because the number of a worker's runs in a round is not fixed. One worker writes the files. Loss,
backward pass, callbacks, logs and evaluation are transformers' own.

For models that take `num_items_in_batch` the Trainer divides the loss by the number of tokens. Then the weight of a run is its
number of tokens (job.weigh), so a round's loss is the mean over all of its tokens.

A step of the Trainer is a round. It is over when the first run of the next round comes, or the epoch ends. Then the model has the
parameters after the round, and the logged loss is the round's mean over all workers.
"""

import math
from typing import Any

import torch
import transformers
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from lockstep import _torch
from lockstep._errors import UsageError
from lockstep._init import init
from lockstep._job import Job

_STOPPED = "the Trainer has stopped training"


class _Rounds(DataLoader[Any]):
    """Answers the Trainer's question for the batches of an epoch with the job's rounds. They may have another batch
    (global_batch); of a stream (IterableDataset) there are as many as the script says."""

    samples = 0  # in an epoch
    batch = 1  # of a round

    def __len__(self) -> int:
        return self.samples // self.batch if self.drop_last else math.ceil(self.samples / self.batch)


class Trainer(transformers.Trainer):
    """A transformers.Trainer that trains as a worker of a job.

    `job`: the result of lockstep.init, if the script has called it. `prepare`: further keywords of job.prepare.

    `per_device_train_batch_size` is the batch size of a round, of all workers together. So training is the same on any number of
    workers.
    """

    optimizer: Any
    lr_scheduler: Any
    control: Any

    def __init__(self, *arguments: Any, job: Job | None = None, prepare: dict[str, Any] | None = None, **more: Any) -> None:
        if not hasattr(transformers.Trainer, "_run_epoch"):
            raise UsageError(
                f"transformers {transformers.__version__} has a Trainer that lockstep does not know: install 5.23 or later"
            )
        super().__init__(*arguments, **more)
        self.job = init(seed=self.args.seed) if job is None else job
        self._prepare = prepare or {}
        self._rate: float | None = None
        self._begun = False  # this worker has had a run
        for wrong, words in (
            (
                self.args.gradient_accumulation_steps != 1,
                "gradient_accumulation_steps: give per_device_train_batch_size the whole batch",
            ),
            (self.args.fp16, "fp16: parameters and gradients are float32; bf16=True computes in bfloat16"),
            (self.args.torch_compile, "torch_compile: compile the model itself (model.compile())"),
            (self.args.world_size > 1, "the Trainer has begun a job of torch.distributed: start the script with lockstep run"),
            (self.args.n_gpu > 0, "the Trainer has taken a GPU, and this one trains on the CPU: say use_cpu=True"),
        ):
            if wrong:
                raise UsageError(words)

    def get_train_dataloader(self) -> DataLoader[Any]:
        theirs = super().get_train_dataloader()
        if not isinstance(theirs.dataset, IterableDataset) and not isinstance(
            self._get_train_sampler(theirs.dataset), RandomSampler
        ):
            raise UsageError("train_sampling_strategy: lockstep shuffles the whole dataset anew in each epoch")
        stream = isinstance(theirs.dataset, IterableDataset)
        loader = _Rounds(
            theirs.dataset,
            batch_size=self.args.per_device_train_batch_size,
            shuffle=not stream,
            drop_last=self.args.dataloader_drop_last,
            collate_fn=theirs.collate_fn,
            num_workers=theirs.num_workers,
            prefetch_factor=theirs.prefetch_factor,
            # By default the arguments say so, where there is nothing to pin memory for too.
            pin_memory=theirs.pin_memory and _torch.accelerator() is not None,
            worker_init_fn=theirs.worker_init_fn,
            multiprocessing_context=theirs.multiprocessing_context,
            timeout=theirs.timeout,
        )
        samples = self._prepare.get("samples") if stream else len(theirs.dataset)
        if samples is None:
            raise UsageError(
                "the train_dataset is an IterableDataset: say with prepare={'samples': N} how many of its items an epoch of "
                "the job has"
            )
        batch = self._prepare.get("global_batch") or loader.batch_size
        numbers: dict[str, Any] = {"samples": samples, "global_batch": batch}
        for name, value in numbers.items():
            if not isinstance(value, int) or value < 1:
                raise UsageError(f"{name}: {value!r} is not a whole number from 1 on")
        loader.samples, loader.batch = numbers.values()
        return loader

    def _prepare_for_training(self, max_steps: int, train_dataloader: DataLoader[Any], resume_from_checkpoint: Any) -> Any:
        if resume_from_checkpoint is not None:
            raise UsageError("resume_from_checkpoint: the job resumes from its run directory (lockstep run --resume)")
        if self.job.joined:
            raise UsageError("trainer.train was called twice: a job trains once")
        self.create_optimizer()
        self.create_scheduler(num_training_steps=max_steps)
        if self.args.bf16:  # autocast around the model's forward; the parameters stay as they are
            self.accelerator.prepare_model(self.model, device_placement=False, evaluation_mode=True)
        clip = self.args.max_grad_norm
        model, self.optimizer, loader, self.lr_scheduler = self.job.prepare(
            self.model,
            self.optimizer,
            train_dataloader,
            self.lr_scheduler,
            epochs=math.ceil(max_steps / max(1, len(train_dataloader))),  # of none job.prepare says why
            updates=max_steps,
            scheduler_steps="update",
            clip_grad_norm=clip if clip and clip > 0 else None,
            **self._prepare,
        )
        self.model_wrapped = model
        for name in ("model", "optimizer", "lr_scheduler"):
            setattr(self.callback_handler, name, getattr(self, name))
        self.callback_handler.train_dataloader = loader
        self.state.is_world_process_zero = self.state.is_local_process_zero = self.is_world_process_zero()
        return model, loader

    def _run_epoch(  # noqa: PLR0917
        self,
        model: Any,
        epoch: int,
        train_dataloader: Any,
        trial: Any = None,
        ignore_keys_for_eval: Any = None,
        start_time: Any = None,
        **_: Any,
    ) -> None:
        more = (model, trial, epoch, ignore_keys_for_eval, start_time)
        before, round_ = self.state.global_step, -1
        self.current_gradient_accumulation_steps = 1  # training_step divides by it
        for inputs in train_dataloader:
            if not self._begun:  # rounds before are no steps of this worker's
                self._begun = True
                self.state.global_step = self._initial_global_step = self._globalstep_last_logged = self.job.round
                self.state.epoch = self.job.round / len(train_dataloader)
            self._note_rounds(self._rounds_over(self.job.round), train_dataloader, more)
            if self.control.should_training_stop:
                self.job.stop(_STOPPED)
                break
            if self.control.should_epoch_stop:
                raise UsageError("should_epoch_stop: an epoch of a job has each sample once")
            if self.job.round != round_:
                round_ = self.job.round
                self.control = self.callback_handler.on_step_begin(self.args, self.state, self.control)
            self.job.seed_run()  # callbacks may have drawn
            self.training_step(model, inputs, self._weigh(inputs))
            self.current_flos += float(self.floating_point_ops(inputs))
            self._track_num_input_tokens(inputs)
            self.control = self.callback_handler.on_pre_optimizer_step(self.args, self.state, self.control)
            self._rate = self._get_learning_rate()
            self.optimizer.step()
            self.control = self.callback_handler.on_optimizer_step(self.args, self.state, self.control)
            self.lr_scheduler.step()
        if self._begun or not self.job.running:  # else the epoch was over before this worker joined
            self._note_rounds(self._rounds_over(self.job.next_round), train_dataloader, more)
        if round_ >= 0 or self.state.global_step > before:
            self.control = self.callback_handler.on_epoch_end(self.args, self.state, self.control)
            self._maybe_log_save_evaluate(self._tr_loss, None, *more, learning_rate=self._rate)
        if not self.job.running:
            self.control.should_training_stop = True
        elif self.control.should_training_stop:
            self.job.stop(_STOPPED)

    def _weigh(self, inputs: Any) -> Any:
        """Weighs the run by its tokens, and returns their number, by which the model divides its loss. The round's loss is divided
        by all of its tokens."""
        items = self._get_num_items_in_batch([inputs], self.args.device)
        if items is None:
            return None
        self.job.weigh(items)
        return items.clamp(min=1) if isinstance(items, torch.Tensor) else max(items, 1)  # a run may have no token to predict

    def _rounds_over(self, of_run: int | None) -> int:
        """Not those that are over without the run in hand, whose parameters this worker does not have yet."""
        over = self.job.metrics.round + 1
        return over if of_run is None else min(over, of_run)

    def _note_rounds(self, over: int, loader: Any, more: tuple[Any, ...]) -> None:
        """`over`: how many are. One since the last call, or more where this worker had no part in some."""
        rounds = over - self.state.global_step
        if rounds <= 0:
            return
        self._tr_loss += self.job.metrics["loss"] * rounds
        self.state.global_step = over
        self.state.epoch = self.state.global_step / len(loader)
        if self.args.max_steps <= 0:  # the Trainer stops at as many, and epochs may have more rounds than they should have had
            self.state.max_steps = max(self.state.max_steps, self.state.global_step + (1 if self.job.running else 0))
        self.control = self.callback_handler.on_step_end(self.args, self.state, self.control)
        if rounds > 1:  # the Trainer looks at the last one only
            self._ask_for_what_was_due(over - rounds, over)
        self._maybe_log_save_evaluate(self._tr_loss, None, *more, learning_rate=self._rate)

    def _ask_for_what_was_due(self, before: int, over: int) -> None:
        """As DefaultFlowCallback does at each step, for those after `before` and up to `over`."""

        def due(strategy: Any, steps: int) -> bool:
            return strategy == "steps" and steps > 0 and over // steps > before // steps

        self.control.should_log |= due(self.args.logging_strategy, self.state.logging_steps)
        self.control.should_evaluate |= due(self.args.eval_strategy, self.state.eval_steps) and self.args.eval_delay <= over
        self.control.should_save |= due(self.args.save_strategy, self.state.save_steps)

    # --- worker 0 writes, and speaks

    def is_world_process_zero(self) -> bool:
        return self.job.rank == 0 if hasattr(self, "job") and self.job.joined else super().is_world_process_zero()

    def is_local_process_zero(self) -> bool:
        return self.is_world_process_zero()

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if self.is_world_process_zero():
            with self.job.away("a checkpoint of the Trainer"):
                super()._save_checkpoint(model, trial)

    def evaluate(self, *arguments: Any, **more: Any) -> dict[str, float]:
        with self.job.away("evaluation"):
            found: dict[str, float] = super().evaluate(*arguments, **more)
        return found

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        if self.is_world_process_zero():
            super().save_model(output_dir, _internal_call)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """They are in the job's checkpoints."""
