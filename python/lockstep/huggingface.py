"""transformers' Trainer as a worker of a job: `lockstep.huggingface.Trainer` where `transformers.Trainer` was.

This Trainer differs in three things. Loader, optimizer and scheduler come from job.prepare. The pass over an epoch counts rounds
of the job instead of batches, because the number of a worker's runs in a round is not fixed. One worker writes the files. Loss,
backward pass, callbacks, logs and evaluation are transformers' own.

For models that take `num_items_in_batch` the Trainer divides the loss by the number of tokens. Then the weight of a run is its
number of tokens (job.weigh), so a round's loss is the mean over all of its tokens.

A step of the Trainer is a round. It is over when the first run of the next round comes, or the epoch ends. Then the model has the
parameters after the round, and the logged loss is the round's mean over all workers.

A resume has two sources. The job's checkpoint has parameters, optimizer and position in the data, and tells the round. The
Trainer's checkpoint adds its own state: its log, the best metric and the callbacks.
"""

import copy
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import TrainerState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from lockstep import _accelerate_state, _errors, _torch
from lockstep._around_loader import AroundLoader
from lockstep._errors import UsageError
from lockstep._init import init
from lockstep._job import Job
from lockstep._preparing import Preparation

_STOPPED = "the Trainer has stopped training"
_MODEL = "model"  # among several modules
_OVER = object()  # where a run was waited for: there is none
_STATE = (  # of the Trainer, beside the step and what follows from the arguments
    "log_history",
    "best_metric",
    "best_global_step",
    "best_model_checkpoint",
    "total_flos",
    "num_input_tokens_seen",
    "stateful_callbacks",
)


class _Rounds(DataLoader[Any]):
    """Answers the Trainer's question for the batches of an epoch with the job's rounds. They may have another batch
    (global_batch); of a stream (IterableDataset) there are as many as the script says."""

    samples = 0  # in an epoch
    batch = 1  # of a round

    def __len__(self) -> int:
        return self.samples // self.batch if self.drop_last else math.ceil(self.samples / self.batch)


class _Passes(AroundLoader):
    """The prepared loader, whose first run comes before the Trainer's first epoch: it tells where the job is."""

    def __init__(self, loader: Any, job: Job) -> None:
        self._loader = loader
        self._empty = 0  # passes before that of the first run
        self._first = _OVER
        while self._first is _OVER and job.running:
            self._runs = iter(loader)
            self._first = next(self._runs, _OVER)
            self._empty += self._first is _OVER

    @property
    def has_begun(self) -> bool:
        """There was a first run."""
        return self._first is not _OVER

    def __iter__(self) -> Iterator[Any]:
        if self._empty > 0:
            self._empty -= 1
            return
        first, self._first = self._first, _OVER
        if first is _OVER:
            yield from self._loader
            return
        yield first
        del first
        yield from self._runs


class Trainer(transformers.Trainer):
    """A transformers.Trainer that trains as a worker of a job.

    `job`: the result of lockstep.init, if the script has called it. `prepare`: further keywords of job.prepare.

    `per_device_train_batch_size` times `gradient_accumulation_steps` is the batch size of a round, of all workers together. So
    training is the same on any number of workers.

    It may stand in front of another Trainer that is made of transformers' (class Mine(Trainer, SFTTrainer)). If that has a batch
    sampler of its own, a round has whole batches of it: one for each worker, times `gradient_accumulation_steps`.
    """

    optimizer: Any
    lr_scheduler: Any
    control: Any

    def __init__(self, *arguments: Any, job: Job | None = None, prepare: dict[str, Any] | None = None, **more: Any) -> None:
        if not hasattr(transformers.Trainer, "_run_epoch"):
            raise UsageError(
                f"transformers {transformers.__version__} has a Trainer that lockstep does not know: install 5.23 or later"
            )
        self._given, self._prepare = job, prepare or {}
        self._rate: float | None = None
        self._round_batch = 0  # samples of a round, or batches where the Trainer has a batch sampler of its own
        self._own_batches = False
        self._model_alone = True  # nothing else is trained
        self._resume: str | bool | None = None
        self._best: dict[str, torch.Tensor] | None = None  # the model with the best metric, if it is to be loaded at the end
        super().__init__(*arguments, **more)

    def create_accelerator_and_postprocess(self) -> None:
        """The first that the Trainer does with its arguments."""
        args = self.args
        for wrong, words in (
            (
                args.gradient_accumulation_steps > 1 and "global_batch" in self._prepare,
                "gradient_accumulation_steps and global_batch of prepare both say how many samples a step has: leave one out",
            ),
            (args.fp16, "fp16: parameters and gradients are float32; bf16=True computes in bfloat16"),
            (args.torch_compile, "torch_compile: compile the model itself (model.compile())"),
            (args.deepspeed or args.fsdp, "deepspeed, fsdp: leave them out, each worker of a job has the whole model"),
            (args.auto_find_batch_size, "auto_find_batch_size: a job trains once; say per_device_train_batch_size"),
            (args.n_gpu > 0, "the Trainer has taken a GPU, and this one trains on the CPU: say use_cpu=True"),
        ):
            if wrong:
                raise UsageError(words)
        self.job = init(seed=args.seed) if self._given is None else self._given
        self._be(self.job.wanted or 0)
        super().create_accelerator_and_postprocess()

    def _be(self, worker: int) -> None:
        """Worker 0 writes, and speaks."""
        _accelerate_state.be_alone(worker, cpu=self.args.use_cpu)

    def get_train_dataloader(self) -> DataLoader[Any]:
        theirs = super().get_train_dataloader()
        stream = isinstance(theirs.dataset, IterableDataset)
        # accelerate puts a batch sampler of torch's in its place, but not of a class that a Trainer brings along.
        self._own_batches = not stream and type(theirs.batch_sampler) is not BatchSampler
        loader = _Rounds(
            theirs.dataset,
            **{"batch_sampler": theirs.batch_sampler} if self._own_batches else self._samples_of(theirs.dataset, stream=stream),
            collate_fn=theirs.collate_fn,
            num_workers=theirs.num_workers,
            prefetch_factor=theirs.prefetch_factor,
            # By default the arguments say so, where there is nothing to pin memory for too.
            pin_memory=theirs.pin_memory and _torch.accelerator() is not None,
            worker_init_fn=theirs.worker_init_fn,
            multiprocessing_context=theirs.multiprocessing_context,
            timeout=theirs.timeout,
        )
        samples = self._prepare.get("samples")
        if samples is None and not stream:
            samples = len(theirs.batch_sampler if self._own_batches else theirs.dataset)
        if samples is None:
            raise UsageError(
                "the train_dataset is an IterableDataset: say with prepare={'samples': N} how many of its items an epoch of "
                "the job has"
            )
        batch = self._prepare.get("global_batch") or self.args.gradient_accumulation_steps * self._at_once()
        numbers: dict[str, Any] = {"samples": samples, "global_batch": batch}
        for name, value in numbers.items():
            if not isinstance(value, int) or value < 1:
                raise UsageError(f"{name}: {value!r} is not a whole number from 1 on")
        loader.samples, loader.batch = numbers.values()
        self._round_batch = batch
        return loader

    def _samples_of(self, dataset: Any, *, stream: bool) -> dict[str, Any]:
        """The loader's arguments that say which samples come, where the job makes the batches."""
        sampler = None if stream else self._get_train_sampler(dataset)
        known = sampler is None or isinstance(sampler, RandomSampler | SequentialSampler)
        return {
            "batch_size": self.args.per_device_train_batch_size,
            "drop_last": self.args.dataloader_drop_last,
            **({"shuffle": isinstance(sampler, RandomSampler)} if known else {"sampler": sampler}),
        }

    def _at_once(self) -> int:
        """Of a round, without accumulation: samples, or batches."""
        if not self._own_batches:
            size: int = self.args.per_device_train_batch_size
            return size
        return Preparation.a_batch_for_each(self.job._entry.workers(), "the Trainer has a batch sampler of its own")

    def set_initial_training_values(self, args: Any, dataloader: Any) -> Any:
        """The loader has rounds already, of which each has the batches that are accumulated."""
        args = copy.copy(args)
        args.gradient_accumulation_steps = 1
        return super().set_initial_training_values(args, dataloader)

    def get_total_train_batch_size(self, args: Any) -> int:
        return self._round_batch

    def train(self, resume_from_checkpoint: str | bool | None = None, *arguments: Any, **more: Any) -> Any:
        """`resume_from_checkpoint`: where the Trainer's own state comes from. All else comes from the job, which resumes itself."""
        self._resume = resume_from_checkpoint or None
        return super().train(None, *arguments, **more)

    def _prepare_for_training(self, max_steps: int, train_dataloader: DataLoader[Any], resume_from_checkpoint: Any) -> Any:
        if self.job.joined:
            raise UsageError("trainer.train was called twice: a job trains once")
        self.create_optimizer()
        self.create_scheduler(num_training_steps=max_steps)
        if self.args.bf16:  # autocast around the model's forward; the parameters stay as they are
            self.accelerator.prepare_model(self.model, device_placement=False, evaluation_mode=True)
        clip = self.args.max_grad_norm
        self._save_with_the_trainer()
        given: dict[str, Any] = {"global_batch": self._round_batch} if self.args.gradient_accumulation_steps > 1 else {}
        if self._own_batches:  # a sampler may give more than its length, which no Trainer takes
            assert isinstance(train_dataloader, _Rounds)
            given = {"global_batch": self._round_batch, "samples": train_dataloader.samples}
        model, self.optimizer, loader, self.lr_scheduler = self.job.prepare(
            self._trained(),
            self.optimizer,
            train_dataloader,
            self.lr_scheduler,
            epochs=math.ceil(max_steps / max(1, len(train_dataloader))),  # of none job.prepare says why
            updates=max_steps,
            scheduler_steps="update",
            clip_grad_norm=clip if clip and clip > 0 else None,
            **given | self._prepare,
        )
        model, self._model_alone = self.model, model is self.model
        self._be(self.job.rank)
        loader = _Passes(loader, self.job)
        self._begun = loader.has_begun
        self.state.global_step = self.job.round
        self.state.epoch = self.job.round / len(loader)
        if self._resume is not None:
            self._take_state(self._resume)
        self.model_wrapped = model
        for name in ("model", "optimizer", "lr_scheduler"):
            setattr(self.callback_handler, name, getattr(self, name))
        self.callback_handler.train_dataloader = loader
        self.state.is_world_process_zero = self.state.is_local_process_zero = self.is_world_process_zero()
        return model, loader

    def _trained(self) -> torch.nn.Module:
        """The model, and what else has parameters of the optimizer: losses may have some."""
        model: torch.nn.Module = self.model
        known = {id(p) for p in model.parameters()}
        others = {id(p) for group in self.optimizer.param_groups for p in group["params"]} - known
        if not others:
            return model
        found: dict[str, torch.nn.Module] = {_MODEL: model}
        for name, value in vars(self).items():
            for key, module in value.items() if isinstance(value, dict) else (("", value),):
                if isinstance(module, torch.nn.Module) and any(id(p) in others for p in module.parameters()):
                    found[f"{name}_{key}" if key else name] = module
        return torch.nn.ModuleDict(found)

    def _state_of_model(self) -> dict[str, torch.Tensor]:
        """As job.state_dict, of what is not only a part of what the job trains."""
        state: dict[str, torch.Tensor] = self.job.state_dict()
        if self._model_alone:
            return state
        begin = f"{_MODEL}."
        return {name.removeprefix(begin): tensor for name, tensor in state.items() if name.startswith(begin)}

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

    # --- checkpoints of the Trainer

    def _save_with_the_trainer(self) -> None:
        """The job's checkpoints come at the Trainer's steps, so that a resume finds both."""
        entry = self.job._entry
        if self.args.save_strategy == "steps" and not self.args.save_only_model and (entry.coordinator or entry.run_dir):
            saved = {"checkpoint.every_rounds": str(self.state.save_steps), "checkpoint.every_epochs": "0"}
            self.job._settings = saved | self.job._settings

    def _take_state(self, source: str | bool) -> None:
        """Of its newest checkpoint up to the job's round, or of that one."""
        step = self.state.global_step
        if not self._begun or step == 0:
            raise UsageError(
                "resume_from_checkpoint: the optimizer's state is in the job's run directory, and this job has begun anew. Start "
                'it with lockstep run --resume, or give the Trainer job=lockstep.init(run_dir="runs/a", resume=True)'
            )
        if source is True:
            found = _checkpoints(self.args.output_dir)
            path = max((one for one in found if one[0] <= step), default=(0, None))[1]
            if path is None:
                _errors.say(
                    f"resume_from_checkpoint: {self.args.output_dir} has no checkpoint of the Trainer up to step {step}, where the "
                    "job goes on, so callbacks and log_history begin anew"
                )
                return
        else:
            path = Path(str(source))
            if not (path / TRAINER_STATE_NAME).is_file():
                raise UsageError(f"resume_from_checkpoint: {path} has no {TRAINER_STATE_NAME}")
        loaded = TrainerState.load_from_json(str(path / TRAINER_STATE_NAME))
        if loaded.global_step > step:
            raise UsageError(
                f"resume_from_checkpoint: {path} is of step {loaded.global_step}, and the job goes on from step {step}: write "
                "resume_from_checkpoint=True, which takes the newest one up to there"
            )
        for name in _STATE:
            setattr(self.state, name, getattr(loaded, name))
        self._load_callback_state()

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if self.args.load_best_model_at_end and self.state.best_global_step == self.state.global_step:
            # Others cannot know when worker 0 has written it.
            self._best = self._state_of_model()
            name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            self.state.best_model_checkpoint = os.path.join(self._get_output_dir(trial), name)
        if self.is_world_process_zero():
            with self.job.away("a checkpoint of the Trainer"):
                super()._save_checkpoint(model, trial)

    def _load_best_model(self) -> None:
        if self._best is None:  # of before a resume
            super()._load_best_model()
        else:
            self.model.load_state_dict(self._best)

    def evaluate(self, *arguments: Any, **more: Any) -> dict[str, float]:
        with self.job.away("evaluation"):
            found: dict[str, float] = super().evaluate(*arguments, **more)
        return found

    def predict(self, *arguments: Any, **more: Any) -> Any:
        with self.job.away("prediction"):
            return super().predict(*arguments, **more)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        if self.is_world_process_zero():
            super().save_model(output_dir, _internal_call)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """They are in the job's checkpoints."""


def _checkpoints(folder: str | None) -> Iterator[tuple[int, Path]]:
    """The Trainer's, by step."""
    for path in Path(folder or ".").glob(f"{PREFIX_CHECKPOINT_DIR}-*"):
        step = path.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-")
        if step.isdecimal() and (path / TRAINER_STATE_NAME).is_file():
            yield int(step), path
