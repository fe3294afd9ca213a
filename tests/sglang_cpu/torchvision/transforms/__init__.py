from torchvision.absent import names
from torchvision.transforms import functional, v2
from torchvision.transforms.functional import InterpolationMode

__all__ = ["InterpolationMode", "functional", "v2"]
__getattr__ = names(__name__)
