"""A training by a trainer that others have made of transformers', for test_torch_trainers.py. usage: torch_trainers.py CASE [WORD=VALUE ...]

CASE: sft, by TRL's SFTTrainer; or by the one of sentence-transformers: pairs (in-batch negatives, no duplicates in a batch), datasets (two, with
a loss each) or labels (a loss with parameters of its own). alone=1: without a job. accumulate=N: batches in an update, alone; moves=N: the same,
of the job, which is more than it has workers. save=PATH: the parameters, and what each batch has.
"""

import json
import pathlib
import sys
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

CASE = sys.argv[1]
WORDS = dict(word.split("=", 1) for word in sys.argv[2:])
ALONE = "alone" in WORDS
SAMPLES = 96
PLAIN = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "save_strategy": "no", "logging_steps": 1, "num_train_epochs": 2,
         "gradient_accumulation_steps": int(WORDS.get("accumulate", 1)), "lr_scheduler_type": "constant", "optim": "sgd", "per_device_train_batch_size": 8}


def text(start, count, step=3):
    return " ".join(f"w{(start + step * i) % 50}" for i in range(count))


def tokenizer():
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{i}" for i in range(50))]
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", eos_token="[SEP]")


def of_job(trainer):
    """That trainer, as a worker."""
    if ALONE:
        return trainer
    import lockstep.huggingface

    class Trainer(lockstep.huggingface.Trainer, trainer):
        def __init__(self, *arguments, **more):
            prepare = {"global_batch": int(WORDS["moves"])} if "moves" in WORDS else None
            super().__init__(*arguments, prepare=prepare, **more)

    return Trainer


def sft(folder):
    from trl import SFTConfig, SFTTrainer

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=54, n_positions=64, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
                                       bos_token_id=3, eos_token_id=3, pad_token_id=0))
    data = Dataset.from_dict({"text": [text(7 * i, 4 + i % 9) for i in range(SAMPLES)]})
    arguments = SFTConfig(folder, learning_rate=0.5, max_length=32, bf16=False, gradient_checkpointing=False, train_sampling_strategy="sequential", **PLAIN)
    return of_job(SFTTrainer)(model=model, args=arguments, train_dataset=data, processing_class=tokenizer())


def sentences(folder):
    import sentence_transformers as st
    from sentence_transformers.sentence_transformer import losses, modules

    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=54, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, hidden_dropout_prob=0,
                         attention_probs_dropout_prob=0)).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    model = st.SentenceTransformer(modules=[modules.Transformer(folder), modules.Pooling(16)], device="cpu")
    data = {"anchor": [text(7 * i, 4 + i % 5) for i in range(SAMPLES)], "positive": [text(7 * i + 1, 5) for i in range(SAMPLES)]}
    more = {}
    if CASE == "pairs":
        given, loss, more = Dataset.from_dict(data), losses.MultipleNegativesRankingLoss(model), {"batch_sampler": "no_duplicates"}
    elif CASE == "labels":
        given, loss, more = Dataset.from_dict(data | {"label": [i % 3 for i in range(SAMPLES)]}), losses.SoftmaxLoss(model, 16, 3), {"max_grad_norm": 0}
    else:
        scores = Dataset.from_dict(data | {"score": [float(i % 2) for i in range(SAMPLES)]})
        given = {"pairs": Dataset.from_dict(data), "scores": scores.select(range(SAMPLES // 2))}
        loss = {"pairs": losses.MultipleNegativesRankingLoss(model), "scores": losses.CosineSimilarityLoss(model)}
    arguments = st.SentenceTransformerTrainingArguments(folder, learning_rate=0.1, **PLAIN, **more)
    return of_job(st.SentenceTransformerTrainer)(model=model, args=arguments, train_dataset=given, loss=loss)


with tempfile.TemporaryDirectory() as made:
    trainer = sft(made) if CASE == "sft" else sentences(made)
    step, sizes = trainer.training_step, []

    def training_step(model, inputs, *arguments, **more):
        sizes.append(max(len(value) for value in inputs.values() if isinstance(value, torch.Tensor)))
        return step(model, inputs, *arguments, **more)

    trainer.training_step = training_step
    trainer.train()
worker = "alone" if ALONE else str(trainer.job.rank)
own = trainer.loss.state_dict() if CASE == "labels" else {}
folder = pathlib.Path(WORDS["save"])
torch.save(trainer.model.state_dict() | {name: value for name, value in own.items() if not name.startswith("model.")}, folder / f"{worker}.pt")
(folder / f"{worker}.json").write_text(json.dumps({"sizes": sizes, "steps": trainer.state.global_step}))
