"""Tiny, real, randomly initialised image-editing pipelines, built with no download, saved as ordinary model folders.

    python -m tests.tiny.image_edit OUT_FOLDER flux2|flux2_klein|qwen_image_edit|kontext|pix2pix

Each folder is 0.5–1.7 MB and reads back with `DiffusionPipeline.from_pretrained`. The text encoders are as deep as the
pipelines' default output layers ask for, the VAEs compress 8 times as the real ones do. Weights are re-drawn so that
prompt and image move the output by several grey levels: as initialised they move it by less than one, and every test of
"does the prompt matter" would pass or fail vacuously.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from workflow_scripts.serving.pipelines import declare_torchvision_operators

declare_torchvision_operators()

import diffusers as df  # noqa: E402  (after the declaration)
import transformers as tf  # noqa: E402
from tokenizers import pre_tokenizers, trainers  # noqa: E402

LATENT_CHANNELS = 4
"""Flux 2 has 32, Qwen-Image 16."""
BLOCKS = 4
"""Four blocks compress 8 times; with fewer, a 128 × 256 image is 8,192 tokens."""

SPECIAL = ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ p.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PIXTRAL_TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'image' %}[IMG]{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
)


def tokenizer() -> Any:
    """A byte-level BPE trained here on two sentences; every string round-trips, fewer than 448 ids."""
    model = tf.Qwen2Tokenizer()._tokenizer  # empty, with the class's normalizer, splitter and decoder
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    model.train_from_iterator(["The mobile screen after the user taps the button.", "Type a text, scroll up."], trainer)
    trained = json.loads(model.to_str())["model"]
    return tf.Qwen2Tokenizer(
        vocab=trained["vocab"],
        merges=[tuple(merge) for merge in trained["merges"]],
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token="<|endoftext|>",
        additional_special_tokens=list(SPECIAL),
        model_max_length=4096,
        padding_side="left",
    )


def _clip_tokenizer() -> Any:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    entries = [*letters, *(letter + "</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    return tf.CLIPTokenizer(vocab={entry: i for i, entry in enumerate(entries)}, merges=[], model_max_length=77)


def _clip_text(tok: Any, width: int = 16) -> Any:
    config = tf.CLIPTextConfig(
        vocab_size=len(tok),
        hidden_size=width,
        intermediate_size=width,
        num_hidden_layers=2,
        num_attention_heads=2,
        projection_dim=width,
        max_position_embeddings=77,
        bos_token_id=tok.bos_token_id,
        eos_token_id=tok.eos_token_id,
        pad_token_id=tok.pad_token_id,
    )
    return tf.CLIPTextModel(config)


def _vae_shape(latent_channels: int) -> dict[str, Any]:
    return {
        "down_block_types": ("DownEncoderBlock2D",) * BLOCKS,
        "up_block_types": ("UpDecoderBlock2D",) * BLOCKS,
        "block_out_channels": (8,) * BLOCKS,
        "layers_per_block": 1,
        "latent_channels": latent_channels,
        "norm_num_groups": 1,
        "sample_size": 32,
    }


def _flux2_vae() -> Any:
    return df.AutoencoderKLFlux2(**_vae_shape(LATENT_CHANNELS), use_quant_conv=False, use_post_quant_conv=False)


def _flux2_transformer(text_width: int, guidance: bool) -> Any:
    return df.Flux2Transformer2DModel(
        patch_size=1,
        in_channels=4 * LATENT_CHANNELS,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=3 * text_width,  # three of the encoder's layers, joined
        timestep_guidance_channels=256,
        axes_dims_rope=(4, 4, 4, 4),
        guidance_embeds=guidance,
    )


def _flow() -> Any:
    return df.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)


def _flux2_klein() -> Any:
    tok = tokenizer()
    tok.chat_template = CHAT_TEMPLATE
    config = tf.Qwen3Config(
        vocab_size=448,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=28,  # layers 9, 18 and 27 are read
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=1024,
    )
    return df.Flux2KleinPipeline(
        scheduler=_flow(),
        vae=_flux2_vae(),
        text_encoder=tf.Qwen3ForCausalLM(config),
        tokenizer=tok,
        transformer=_flux2_transformer(16, guidance=False),
        is_distilled=True,
    )


def _flux2() -> Any:
    tok = tokenizer()
    tok.add_tokens(["[IMG]", "[IMG_BREAK]", "[IMG_END]"], special_tokens=True)
    tok.chat_template = PIXTRAL_TEMPLATE
    images = tf.PixtralImageProcessor(size={"longest_edge": 64}, patch_size={"height": 16, "width": 16})
    processor = tf.PixtralProcessor(images, tok, patch_size=16, spatial_merge_size=2, chat_template=PIXTRAL_TEMPLATE)
    text = {
        "model_type": "mistral",
        "vocab_size": 448,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 31,  # layers 10, 20 and 30 are read
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 1024,
    }
    vision = {
        "model_type": "pixtral",
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "head_dim": 8,
        "image_size": 64,
        "patch_size": 16,
    }
    config = tf.Mistral3Config(
        text_config=text,
        vision_config=vision,
        image_token_index=tok.convert_tokens_to_ids("[IMG]"),
        spatial_merge_size=2,
    )
    return df.Flux2Pipeline(
        scheduler=_flow(),
        vae=_flux2_vae(),
        text_encoder=tf.Mistral3ForConditionalGeneration(config),
        tokenizer=processor,
        transformer=_flux2_transformer(16, guidance=True),
    )


def _qwen_image_edit() -> Any:
    tok = tokenizer()
    pixels = {
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "size": {"shortest_edge": 28**2, "longest_edge": 256**2},
    }
    processor = tf.Qwen2_5_VLProcessor(
        tf.Qwen2VLImageProcessor(**pixels), tok, tf.Qwen2VLVideoProcessor(**pixels), chat_template=CHAT_TEMPLATE
    )
    ids = {
        name: tok.convert_tokens_to_ids(token)
        for name, token in {
            "image_token_id": "<|image_pad|>",
            "video_token_id": "<|video_pad|>",
            "vision_start_token_id": "<|vision_start|>",
            "vision_end_token_id": "<|vision_end|>",
        }.items()
    }
    text = {
        "vocab_size": len(tok),
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 2, 2]},
        "eos_token_id": tok.eos_token_id,
        "pad_token_id": tok.pad_token_id,
        "bos_token_id": None,
    }
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": 64,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "window_size": 112,
        "fullatt_block_indexes": [1],
    }
    encoder = tf.Qwen2_5_VLForConditionalGeneration(tf.Qwen2_5_VLConfig(text_config=text, vision_config=vision, **ids))
    vae = df.AutoencoderKLQwenImage(
        base_dim=8,
        z_dim=LATENT_CHANNELS,
        dim_mult=[1] * BLOCKS,
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        latents_mean=[0.0] * LATENT_CHANNELS,
        latents_std=[1.0] * LATENT_CHANNELS,
    )
    transformer = df.QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=4 * LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=64,
        guidance_embeds=False,
        axes_dims_rope=(8, 4, 4),
    )
    return df.QwenImageEditPlusPipeline(
        scheduler=_flow(), vae=vae, text_encoder=encoder, tokenizer=tok, processor=processor, transformer=transformer
    )


def _kontext() -> Any:
    tok = _clip_tokenizer()
    t5 = tf.T5EncoderModel(tf.T5Config(vocab_size=448, d_model=16, d_kv=8, d_ff=16, num_layers=2, num_heads=2))
    transformer = df.FluxTransformer2DModel(
        patch_size=1,
        in_channels=4 * LATENT_CHANNELS,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        pooled_projection_dim=16,
        axes_dims_rope=(4, 4, 8),
        guidance_embeds=True,
    )
    vae = df.AutoencoderKL(
        **_vae_shape(LATENT_CHANNELS),
        shift_factor=0.0,
        scaling_factor=1.0,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )
    return df.FluxKontextPipeline(
        scheduler=_flow(),
        vae=vae,
        text_encoder=_clip_text(tok),
        tokenizer=tok,
        text_encoder_2=t5,
        tokenizer_2=tokenizer(),  # stands in for T5's sentencepiece
        transformer=transformer,
    )


def _pix2pix() -> Any:
    tok = _clip_tokenizer()
    unet = df.UNet2DConditionModel(
        sample_size=32,
        in_channels=8,
        out_channels=4,
        block_out_channels=(8, 16),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=4,
        norm_num_groups=4,
    )
    return df.StableDiffusionInstructPix2PixPipeline(
        vae=df.AutoencoderKL(**_vae_shape(4)),
        text_encoder=_clip_text(tok),
        tokenizer=tok,
        unet=unet,
        scheduler=df.EulerDiscreteScheduler(),
        safety_checker=None,
        feature_extractor=None,
        image_encoder=None,
        requires_safety_checker=False,
    )


BUILDERS: dict[str, Callable[[], Any]] = {
    "flux2": _flux2,
    "flux2_klein": _flux2_klein,
    "qwen_image_edit": _qwen_image_edit,
    "kontext": _kontext,
    "pix2pix": _pix2pix,
}


@torch.no_grad()
def _liven(pipe: Any, gain: float) -> None:
    """Makes prompt and image matter: louder transformer, text encoder with unit gain in every layer."""
    for parameter in (getattr(pipe, "transformer", None) or pipe.unet).parameters():
        if parameter.ndim > 1:
            parameter.mul_(gain)
    for name, parameter in pipe.text_encoder.named_parameters():
        if parameter.ndim > 1:
            parameter.normal_(0, 1.0 if "embed" in name else parameter.shape[-1] ** -0.5)


def build(folder: str | Path, pipeline: str, seed: int = 0) -> Path:
    """Builds the tiny pipeline and saves it to `folder` as fp32 safetensors; the same seed gives the same weights."""
    torch.manual_seed(seed)
    pipe = BUILDERS[pipeline]()
    _liven(pipe, 6.0 if pipeline == "qwen_image_edit" else 2.0)
    pipe.save_pretrained(folder)
    return Path(folder)


if __name__ == "__main__":
    print(build(sys.argv[1], sys.argv[2]))
