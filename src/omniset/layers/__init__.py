"""Set layers as plain PyTorch modules, each a reduce and a map."""

from omniset.layers.base import SetLayer
from omniset.layers.flare import LatentRouting
from omniset.layers.pooling import FeaturewiseSortPooling, GatedAttentionPooling, SetPooling
from omniset.layers.set_transformer import InducedSetAttentionBlock, PoolingByMultiheadAttention, SetAttentionBlock
from omniset.layers.slots import SlotSetEncoder
from omniset.layers.universal import LeeAttentionBlock, MultisetAttentionBlock

__all__ = [
    "FeaturewiseSortPooling",
    "GatedAttentionPooling",
    "InducedSetAttentionBlock",
    "LatentRouting",
    "LeeAttentionBlock",
    "MultisetAttentionBlock",
    "PoolingByMultiheadAttention",
    "SetAttentionBlock",
    "SetLayer",
    "SetPooling",
    "SlotSetEncoder",
]
