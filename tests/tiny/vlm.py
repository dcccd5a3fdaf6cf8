"""A tiny, real, randomly initialised Qwen3.5-style vision-language model folder, built with no download.

    python -m tests.tiny.vlm OUT_FOLDER [SEED]

1.2 MB, 0.3 M weights: four decoder layers (three with linear attention, one with full attention, as in Qwen3.5), a
vision tower of two blocks, a byte-level tokenizer trained here (every string round-trips), image processor, chat
template. Reads back through AutoProcessor and AutoModelForImageTextToText in 0.2 s.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from workflow_scripts.serving.pipelines import declare_torchvision_operators

declare_torchvision_operators()

import transformers as tf  # noqa: E402  (after the declaration)
from tokenizers import pre_tokenizers, trainers  # noqa: E402

VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
SPECIAL = ("<|im_start|>", "<|im_end|>", *VISION)
PATCH = 16

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ p.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)

CORPUS = (
    "<!DOCTYPE html><html><head><style>body{margin:0;font-family:sans-serif}</style></head><body><h1>Title</h1>",
    '<div class="card"><p>Some text here.</p><button>Click</button></div></body></html>',
    "The critic compares the screenshots and says what to change. VERDICT: CONTINUE",
)


def tokenizer(corpus: Iterable[str] = CORPUS, size: int = 400) -> Any:
    """A byte-level BPE of `size` entries trained on `corpus`, with Qwen's special tokens."""
    model = tf.Qwen3_5Tokenizer()._tokenizer  # empty, with the class's normalizer, splitter and decoder
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    model.train_from_iterator(corpus, trainer)
    trained = json.loads(model.to_str())["model"]
    made = tf.Qwen3_5Tokenizer(
        vocab=trained["vocab"],
        merges=[tuple(merge) for merge in trained["merges"]],
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token="<|endoftext|>",
        additional_special_tokens=list(SPECIAL),
        model_max_length=32768,
        padding_side="left",  # as an argument: set later, it is not saved
    )
    made.add_tokens(["<think>", "</think>"])
    return made


def processor(tok: Any, max_pixels: int = 256 * 256) -> Any:
    """Qwen3-VL's processor around `tok`; images keep their size up to `max_pixels`, in multiples of 32 px."""
    pixels = {
        "patch_size": PATCH,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "size": {"shortest_edge": (2 * PATCH) ** 2, "longest_edge": max_pixels},
    }
    return tf.Qwen3VLProcessor(
        tf.Qwen2VLImageProcessor(**pixels), tok, tf.Qwen3VLVideoProcessor(**pixels), chat_template=CHAT_TEMPLATE
    )


def config(tok: Any, width: int = 64, layers: int = 4) -> Any:
    """Qwen3.5 in small: every fourth decoder layer has full attention, the others gated delta nets."""
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    tokens = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    ids = dict(zip(names, tok.convert_tokens_to_ids(list(tokens)), strict=True))
    text = {
        "vocab_size": len(tok),
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": True,
        "eos_token_id": tok.eos_token_id,
        "pad_token_id": tok.pad_token_id,
        "bos_token_id": None,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "full_attention_interval": 4,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,  # of head_dim: 4 frequencies, shared out by mrope_section
            "mrope_interleaved": True,
            "mrope_section": [2, 1, 1],
        },
    }
    vision = {
        "depth": 2,
        "hidden_size": width // 2,
        "intermediate_size": width,
        "num_heads": 2,
        "out_hidden_size": width,
        "patch_size": PATCH,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "num_position_embeddings": 64,
    }
    return tf.Qwen3_5Config(text_config=text, vision_config=vision, tie_word_embeddings=True, **ids)


def build(
    folder: str | Path,
    seed: int = 0,
    *,
    corpus: Iterable[str] = CORPUS,
    vocabulary: int = 400,
    width: int = 64,
    layers: int = 4,
    max_pixels: int = 256 * 256,
) -> Path:
    """Builds the model and saves it to `folder` in fp32; the same arguments give the same files."""
    tok = tokenizer(corpus, vocabulary)
    torch.manual_seed(seed)
    model = tf.Qwen3_5ForConditionalGeneration(config(tok, width, layers)).eval()
    # What real folders hold and a trainer must not let through: defaults that change the distribution.
    model.generation_config.update(
        eos_token_id=[tok.eos_token_id, tok.pad_token_id],
        pad_token_id=tok.pad_token_id,
        do_sample=True,
        top_k=20,
        top_p=0.95,
        temperature=0.6,
    )
    model.save_pretrained(folder)
    processor(tok, max_pixels).save_pretrained(folder)
    return Path(folder)


if __name__ == "__main__":
    print(build(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0))
