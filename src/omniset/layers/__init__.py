"""Set layers as plain PyTorch modules, each a reduce and a map."""

from omniset.layers.base import SetLayer
from omniset.layers.deep_sets import SetPooling
from omniset.layers.flare import LatentRouting
from omniset.layers.fspool import FeaturewiseSortPooling
from omniset.layers.instances import CriticalAttention, CriticalInstances, GatedAttentionPooling
from omniset.layers.set_norm import SetNorm
from omniset.layers.set_transformer import InducedSetAttentionBlock, PoolingByMultiheadAttention, SetAttentionBlock
from omniset.layers.slices import SliceAttention
from omniset.layers.slots import SlotSetEncoder
from omniset.layers.universal import LeeAttentionBlock, MultisetAttentionBlock

__all__ = [
    "CriticalAttention",
    "CriticalInstances",
    "FeaturewiseSortPooling",
    "GatedAttentionPooling",
    "InducedSetAttentionBlock",
    "LatentRouting",
    "LeeAttentionBlock",
    "MultisetAttentionBlock",
    "PoolingByMultiheadAttention",
    "SetAttentionBlock",
    "SetLayer",
    "SetNorm",
    "SetPooling",
    "SliceAttention",
    "SlotSetEncoder",
]
