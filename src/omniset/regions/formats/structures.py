"""Which regions are of the cortex, by what a file says of them, else by their names."""

from __future__ import annotations

import re

CORTEX, SUBCORTEX = "cortex", "subcortex"
SIDES = ("lh", "rh", "left", "right", "l", "r")
GLUED = re.compile("^[LR](?=[A-Z]?[a-z])|(?<=[a-z])[LR]$")  # Lthal, RHippocampus, PutamenL
# Whole words that tell it wherever they stand. Parts of words do not: caudalmiddlefrontal, ParaHippocampal.
WORDS = re.compile(
    r"(left|right)?(hypo|sub|epi)?thalam(us|i|ic)(proper)?|hippocampus|amygdala|(caudate|accumbens)(nucleus|area)?"
    r"|putamen|(globus)?pallid(um|us)|(neo)?striat(um|al)|cerebell?(um|ar)(cortex|whitematter)?|vermis|claustrum"
    r"|nucle(us|i)|ganglia|brainstem|stem|midbrain|mesencephalon|pons|medulla|diencephalon|ventraldc|geniculate"
    r"|colliculus|nigra|raphe|habenula|subcort(ex|ical)|white|wm|(corpus)?callosum|ventric(le|les|al)|vent|csf|vessel"
    r"|choroid|chiasm|fornix|hyp(o|er)intensities"
)
# Short names, each all that is left without side and number: of ENIGMA, AAL 3, FreeSurfer's corpus callosum.
SHORT = re.compile(
    r"accumb|amyg|caud|hip(po?)?|pall?|put|thal?|latvent|n ?acc?|gp[ei]?|stn|sth|vta|sn( ?p?[cr])?|red n|[lm]gn|vdc"
    r"|thal [a-z]{2,3}|cc (mid )?(anterior|posterior)|cc central"
)
# Those in which the case tells: Glasser's PGp is cortex, Tian's pGP is not. Of Tian (pTHA, THA-VAia, HIP-head-m1), the
# Brainnetome atlas (mPFtha, vmPu, cHipp) and CIT168.
CASED = re.compile(
    r"([apml]?(HIP|AMY|THA|GP|PUT|CAU)|NAc)( ([DV][AP](m|l|s|ia|ip)?|head|body|tail|shell|core|[lm]\d?))*"
    r"|[mlrc]?(Amyg|Hipp)|BG|[vd]Ca|(vm|dl)Pu|NAC|(mPF|mPM|S|rT|PP|O|cT|lPF)tha|Pu|Ca|EXA|RN|PBP|VeP|HN|HTH|MN|LC"
)


def structure_of_name(name: str) -> str:
    """Subcortex, which is all below the cortex, if atlases call a structure of it so; else cortex.

    Example:
        >>> [structure_of_name(n) for n in ("Lhippo", "L_parahippocampal", "pGP-rh", "L_PGp_ROI")]
        ['subcortex', 'cortex', 'subcortex', 'cortex']
    """
    words = [word for word in re.findall("[A-Za-z0-9]+", name) if not word.isdigit() and word.lower() not in SIDES]
    lower = [word.lower() for word in words]
    if "ctx" in lower or any(word.endswith("networks") for word in lower):  # ctx-lh-cuneus, 7Networks_LH_Vis_1
        return CORTEX
    if "cortex" in lower and not any(word.startswith("cerebel") for word in lower):
        return CORTEX
    for one in (words, [GLUED.sub("", word) for word in words]):
        whole = " ".join(one)
        if (
            any(WORDS.fullmatch(word.lower()) for word in one)
            or SHORT.fullmatch(whole.lower())
            or CASED.fullmatch(whole)
        ):
            return SUBCORTEX
    return CORTEX


def structure_of_text(text: str) -> str:
    """The structure that an entry of a column tells, "" if it tells none. Short names may be those of networks.

    Example:
        >>> [structure_of_text(t) for t in ("Cortex", "subcortex/brainstem", "Cerebellar cortex", "frontal", "SN")]
        ['cortex', 'subcortex', 'subcortex', '', '']
    """
    lower = text.lower()
    if re.search("sub[ _-]?cort|cerebel", lower) or any(map(WORDS.fullmatch, re.findall("[a-z0-9]+", lower))):
        return SUBCORTEX
    return CORTEX if re.search("cort(ex|ical)|ctx", lower) else ""
