from torchvision.absent import names
from torchvision.transforms.functional import InterpolationMode
from torchvision.transforms.v2 import functional

__all__ = ["InterpolationMode", "functional"]
__getattr__ = names(__name__)
