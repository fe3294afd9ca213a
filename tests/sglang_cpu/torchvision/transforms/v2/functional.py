from torchvision.absent import names
from torchvision.transforms.functional import InterpolationMode

__all__ = ["InterpolationMode"]
__getattr__ = names(__name__)
