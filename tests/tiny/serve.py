"""The command `transformers`, also beside a torchvision whose compiled half cannot load.

    python -m tests.tiny.serve serve FOLDER --device cpu --port 8000

The package index gives a CPU torch a CUDA build of torchvision; there, pictures are decoded by Pillow. Changes nothing
where torchvision is whole.
"""

from __future__ import annotations

import io
import sys
from typing import Any

from workflow_scripts.serving.pipelines import declare_torchvision_operators


def main() -> Any:
    declare_torchvision_operators()
    import torchvision.io
    from torchvision.io.image import _has_image_ops

    if not _has_image_ops():
        torchvision.io.decode_image = decode_image
    from transformers.cli.transformers import main as transformers

    return transformers()


def decode_image(data: Any, mode: Any = None, apply_exif_orientation: bool = False) -> Any:
    """`torchvision.io.decode_image` for bytes: a tensor uint8[3, height, width]."""
    from PIL import Image
    from torchvision.transforms.functional import pil_to_tensor

    with Image.open(io.BytesIO(data.numpy().tobytes())) as image:
        return pil_to_tensor(image.convert("RGB"))


if __name__ == "__main__":
    sys.exit(main())
