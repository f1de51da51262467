"""The target model behind one small protocol: load, cache, attention, self-check."""

from entmtp.target.cache import KVCache, LayerShape
from entmtp.target.model import TargetModel

__all__ = ["KVCache", "LayerShape", "TargetModel"]
