"""The table of benchmarks/serving.py on one CUDA card, within five minutes, with random weights of a telling size.

    python benchmarks/serving_gpu.py [--weights FOLDER --pipeline flux2_klein]

Nothing is downloaded. Without `--weights` it builds FLUX.2 Klein with real layer widths but few layers (about 1.2
billion parameters), in bfloat16, and asks for 512 × 1024 pixels in four sampling steps. Prints the card and the library
versions first, then the table, then how far rows of one call lie from single calls.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

SIZE = (512, 1024)
SAMPLING_STEPS = 4


def build(folder: Path) -> Path:
    """A Klein pipeline whose transformer is as wide as the 4B model's and has 2 + 4 layers."""
    import torch

    from tests.tiny import image_edit

    image_edit.declare_torchvision_operators()
    import diffusers

    torch.manual_seed(0)
    pipe = image_edit.BUILDERS["flux2_klein"]()
    transformer = diffusers.Flux2Transformer2DModel(
        patch_size=1,
        in_channels=4 * image_edit.LATENT_CHANNELS,
        num_layers=2,
        num_single_layers=4,
        attention_head_dim=128,
        num_attention_heads=24,
        joint_attention_dim=3 * 16,
        timestep_guidance_channels=256,
        axes_dims_rope=(32, 32, 32, 32),
        guidance_embeds=False,
    )
    pipe.register_modules(transformer=transformer)
    pipe.to(torch.bfloat16).save_pretrained(folder)
    print(f"{sum(p.numel() for p in transformer.parameters()) / 1e9:.2f} billion parameters", flush=True)
    return folder


def spread(weights: str, pipeline: str) -> None:
    """Prints the largest difference in grey levels between rows of one call and single calls."""
    import numpy

    from benchmarks.serving import screens
    from workflow_scripts.serving.pipelines import Edit, EditPipeline
    from workflow_scripts.serving.spec import ServerSpec

    loaded = EditPipeline(ServerSpec(pipeline, weights, device="cuda"))  # type: ignore[arg-type]
    pictures = screens(4, SIZE)
    rows = [Edit(f"tap {n}", (pictures[n],), *SIZE, n, SAMPLING_STEPS, guidance=1.0) for n in range(4)]
    singles = [numpy.asarray(loaded.generate([row])[0], int) for row in rows]
    joined = [numpy.asarray(image, int) for image in loaded.generate(rows)]
    for levels in (numpy.abs(a - b) for a, b in zip(singles, joined, strict=True)):
        print(f"joined against single, bfloat16: largest {levels.max()}, mean {levels.mean():.4f} grey levels")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights")
    parser.add_argument("--pipeline", default="flux2_klein")
    options = parser.parse_args()
    subprocess.run(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv"], check=True)
    import diffusers
    import torch

    print(f"torch {torch.__version__}, diffusers {diffusers.__version__}", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        weights = options.weights or str(build(Path(temporary) / "klein"))
        command = [sys.executable, str(Path(__file__).with_name("serving.py")), "--device", "cuda"]
        command += ["--dtype", "bfloat16", "--pipelines", options.pipeline, "--weights", weights]
        command += ["--size", f"{SIZE[0]}x{SIZE[1]}", "--sampling-steps", str(SAMPLING_STEPS)]
        subprocess.run(command, check=True, timeout=240, env={**os.environ, "PYTHONUNBUFFERED": "1"})
        spread(weights, options.pipeline)


if __name__ == "__main__":
    main()
