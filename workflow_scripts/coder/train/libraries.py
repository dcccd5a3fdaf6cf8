"""torch, transformers and peft, imported in the order in which a CPU machine can import them.

The package index's torchvision is a CUDA build; beside a CPU torch two of its operators have to be declared before
transformers imports it. Modules of this package take the three libraries from here.
"""

import torch

from ...serving.pipelines import declare_torchvision_operators

declare_torchvision_operators()

import peft  # noqa: E402
import transformers  # noqa: E402

__all__ = ["peft", "torch", "transformers"]
