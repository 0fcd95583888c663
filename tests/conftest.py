"""Identity is exact on the reference BLAS with TF32 off; both are chosen before mlx is imported."""
import os

os.environ["SPECDECODE_BLAS"] = "reference"
os.environ["MLX_ENABLE_TF32"] = "0"
