"""Cortex and subcortex: by the names of every atlas, and by what files say, which comes first."""

import numpy as np
import pandas as pd
import pytest

from omniset.regions import read_regions
from omniset.regions.atlas_coordinates import groups_of, structure_of_name, structure_of_text


def words(text):
    return text.split()


DESIKAN = words("""
bankssts caudalanteriorcingulate caudalmiddlefrontal cuneus entorhinal fusiform inferiorparietal
inferiortemporal isthmuscingulate lateraloccipital lateralorbitofrontal lingual medialorbitofrontal
middletemporal parahippocampal paracentral parsopercularis parsorbitalis parstriangularis pericalcarine
postcentral posteriorcingulate precentral precuneus rostralanteriorcingulate rostralmiddlefrontal
superiorfrontal superiorparietal superiortemporal supramarginal frontalpole temporalpole transversetemporal
insula""")
DESTRIEUX = words("""
G_and_S_frontomargin G_and_S_occipital_inf G_and_S_paracentral G_and_S_subcentral G_and_S_transv_frontopol
G_and_S_cingul-Ant G_and_S_cingul-Mid-Ant G_and_S_cingul-Mid-Post G_cingul-Post-dorsal G_cingul-Post-ventral
G_cuneus G_front_inf-Opercular G_front_inf-Orbital G_front_inf-Triangul G_front_middle G_front_sup
G_Ins_lg_and_S_cent_ins G_insular_short G_occipital_middle G_occipital_sup G_oc-temp_lat-fusifor
G_oc-temp_med-Lingual G_oc-temp_med-Parahip G_orbital G_pariet_inf-Angular G_pariet_inf-Supramar G_parietal_sup
G_postcentral G_precentral G_precuneus G_rectus G_subcallosal G_temp_sup-G_T_transv G_temp_sup-Lateral
G_temp_sup-Plan_polar G_temp_sup-Plan_tempo G_temporal_inf G_temporal_middle Lat_Fis-ant-Horizont
Lat_Fis-ant-Vertical Lat_Fis-post Pole_occipital Pole_temporal S_calcarine S_central S_cingul-Marginalis
S_circular_insula_ant S_circular_insula_inf S_circular_insula_sup S_collat_transv_ant S_collat_transv_post
S_front_inf S_front_middle S_front_sup S_interm_prim-Jensen S_intrapariet_and_P_trans S_oc_middle_and_Lunatus
S_oc_sup_and_transversal S_occipital_ant S_oc-temp_lat S_oc-temp_med_and_Lingual S_orbital_lateral
S_orbital_med-olfact S_orbital-H_Shaped S_parieto_occipital S_pericallosal S_postcentral S_precentral-inf-part
S_precentral-sup-part S_suborbital S_subparietal S_temporal_inf S_temporal_sup S_temporal_transverse""")
GLASSER = words("""
V1 MST V6 V2 V3 V4 V8 4 3b FEF PEF 55b V3A RSC POS2 V7 IPS1 FFC V3B LO1 LO2 PIT MT A1 PSL SFL PCV STV 7Pm 7m
POS1 23d v23ab d23ab 31pv 5m 5mv 23c 5L 24dd 24dv 7AL SCEF 6ma 7Am 7PL 7PC LIPv VIP MIP 1 2 3a 6d 6mp 6v p24pr
33pr a24pr p32pr a24 d32 8BM p32 10r 47m 8Av 8Ad 9m 8BL 9p 10d 8C 44 45 47l a47r 6r IFJa IFJp IFSp IFSa p9-46v
46 a9-46v 9-46d 9a 10v a10p 10pp 11l 13l OFC 47s LIPd 6a i6-8 s6-8 43 OP4 OP1 OP2-3 52 RI PFcm PoI2 TA2 FOP4 MI
Pir AVI AAIC FOP1 FOP3 FOP2 PFt AIP EC PreS H ProS PeEc STGa PBelt A5 PHA1 PHA3 STSda STSdp STSvp TGd TE1a TE1p
TE2a TF TE2p PHT PH TPOJ1 TPOJ2 TPOJ3 DVT PGp IP2 IP1 IP0 PFop PF PFm PGi PGs V6A VMV1 VMV3 PHA2 V4t FST V3CD
LO3 VMV2 31pd 31a VVC 25 s32 pOFC PoI1 Ig FOP5 p10p p47r TGv MBelt LBelt A4 STSva TE1m PI a32pr p24""")
AAL_CORTEX = words("""
Precentral Frontal_Sup Frontal_Sup_Orb Frontal_Mid Frontal_Inf_Oper Frontal_Inf_Tri Rolandic_Oper
Supp_Motor_Area Olfactory Frontal_Sup_Medial Frontal_Med_Orb Rectus Insula Cingulum_Ant Cingulum_Mid
Cingulum_Post Cingulate_Ant ParaHippocampal Calcarine Cuneus Lingual Occipital_Sup Occipital_Mid Occipital_Inf
Fusiform Postcentral Parietal_Sup Parietal_Inf SupraMarginal Angular Precuneus Paracentral_Lobule Heschl
Temporal_Sup Temporal_Pole_Sup Temporal_Mid Temporal_Pole_Mid Temporal_Inf OFCmed OFCant ACC_sub ACC_pre ACC_sup""")
OXFORD_CORTEX = [
    *("Frontal Pole", "Insular Cortex", "Subcallosal Cortex", "Paracingulate Gyrus", "Lingual Gyrus"),
    *("Cingulate Gyrus, anterior division", "Parahippocampal Gyrus, anterior division", "Planum Polare"),
    *("Juxtapositional Lobule Cortex (formerly Supplementary Motor Cortex)", "Temporal Fusiform Cortex"),
    *("Heschl's Gyrus (includes H1 and H2)", "Left Cerebral Cortex", "Left Parahippocampal Gyrus"),
]
ASEG = words("""
Cerebral-White-Matter Lateral-Ventricle Inf-Lat-Vent Cerebellum-White-Matter Cerebellum-Cortex Thalamus
Thalamus-Proper Thalamus-Proper* Caudate Putamen Pallidum Hippocampus Amygdala Accumbens-area VentralDC vessel
choroid-plexus WM-hypointensities non-WM-hypointensities""")
ASEG_MIDDLE = words("""
3rd-Ventricle 4th-Ventricle 5th-Ventricle Brain-Stem CSF WM-hypointensities non-WM-hypointensities Optic-Chiasm
CC_Posterior CC_Mid_Posterior CC_Central CC_Mid_Anterior CC_Anterior""")
ENIGMA = words("accumb amyg caud hippo pal put thal")
TIAN = words("""
HIP AMY pTHA aTHA NAc GP PUT CAU aHIP pHIP lAMY mAMY THA-DP THA-VP THA-VA THA-DA NAc-shell NAc-core pGP aGP aPUT
pPUT aCAU pCAU HIP-head-m HIP-head-l HIP-body HIP-tail HIP-head-m1 HIP-head-m2 HIP-body-m HIP-body-l THA-VPm
THA-VPl THA-VAip THA-VAia THA-VAs THA-DAm THA-DAl PUT-VA PUT-DA PUT-VP PUT-DP CAU-VA CAU-DA CAU-body CAU-tail""")
AAL = words("""
Hippocampus Amygdala Caudate Putamen Pallidum Thalamus Cerebelum_Crus1 Cerebelum_3 Cerebellum_4_5 Thal_AV
Thal_MDm Thal_PuI Thal_Re N_Acc VTA SN_pc SN_pr Red_N LC""")
OXFORD = ["Cerebral White Matter", "Lateral Ventrical", "Thalamus", "Caudate", "Putamen", "Pallidum", "Hippocampus"]
OXFORD += ["Amygdala", "Accumbens"]
CIT168 = words("Pu Ca NAC EXA GPe GPi SNc RN SNr PBP VTA VeP HN HTH MN STH")
BRAINNETOME = words("mAmyg lAmyg rHipp cHipp vCa GP NAC vmPu dCa dlPu mPFtha mPMtha Stha rTtha PPtha Otha cTtha lPFtha")
HCP = words("ACCUMBENS AMYGDALA CAUDATE CEREBELLUM DIENCEPHALON_VENTRAL HIPPOCAMPUS PALLIDUM PUTAMEN THALAMUS")


def both(*forms, names):
    sides = [("L", "lh", "Left", "LEFT"), ("R", "rh", "Right", "RIGHT")]
    return [form.format(name, *side) for form in forms for name in names for side in sides]


CORTICAL = {
    "Desikan-Killiany": both(
        *("{1}_{0}", "ctx-{2}-{0}", "{2}_{0}", "{2}.{0}", "{0}_{1}", "{0}-{2}", "{3} {0}", "{1}_{0}_thickavg", "{0}"),
        names=DESIKAN,
    ),
    "Destrieux": both("ctx_{2}_{0}", "{2}_{0}", "{1} {0}", "{0}", names=DESTRIEUX),
    "Glasser": both("{1}_{0}_ROI", "{1}_{0}", "{0}_{1}", "{2}.{1}_{0}_ROI", "{0}", names=GLASSER),
    "Schaefer": [
        *("7Networks_LH_Vis_1", "7Networks_RH_Default_pCunPCC_2", "17Networks_LH_LimbicB_OFC_1", "LH_Cont_Par_3"),
        *("7Networks_LH_Limbic_TempPole_1", "17Networks_RH_DefaultC_PHC_1", "RH_SalVentAttn_Med_2"),
    ],
    "AAL": both("{0}_{1}", names=AAL_CORTEX),
    "Harvard-Oxford": [*OXFORD_CORTEX, "Right Cerebral Cortex"],
    "others": [
        *("CORTEX_LEFT", "Visual1-01_L-Ctx", "region 1", "L_region_2", "12", "brain"),
        "GM Hippocampus entorhinal cortex R",
    ],
}
BELOW = {
    "aseg": [*both("{3}-{0}", "{3}.{0}", names=ASEG), *ASEG_MIDDLE],
    "ENIGMA": both("{1}{0}", "{1}_{0}", names=ENIGMA),
    "Tian": both("{0}-{2}", "{0}_{2}", "{2}_{0}", names=TIAN),
    "AAL": [*both("{0}_{1}", names=AAL), "Vermis_1_2", "Raphe_D"],
    "Harvard-Oxford": [*both("{3} {0}", names=OXFORD), "Brain-Stem"],
    "CIT168": both("{0}", "{1}_{0}", "{0}_{1}", names=CIT168),
    "Brainnetome": [*both("{0}_{1}", names=BRAINNETOME), "Tha_L_8_1", "211(Left) L mAmyg"],
    "HCP": [*both("{0}_{4}", "CIFTI_STRUCTURE_{0}_{4}", names=HCP), "BRAIN_STEM", "Visual1-08_L-Thalamus"],
    "glued": ["LThalamus", "RHippocampus", "LHipp", "thalamusproper", "accumbensarea", "brainstem", "PutamenR"],
}


@pytest.mark.parametrize(("structure", "atlases"), [("cortex", CORTICAL), ("subcortex", BELOW)])
def test_names_of_every_atlas(structure, atlases):
    assert [name for names in atlases.values() for name in names if structure_of_name(name) != structure] == []


@pytest.mark.parametrize(
    ("structure", "texts"),
    [
        ("cortex", ["cortex", "Cerebral cortex", "cortical", "isocortex", "CTX"]),
        ("subcortex", ["subcortex/brainstem", "sub-cortical", "Cerebellum", "Cerebellar cortex", "white matter"]),
        ("", ["", "other", "frontal", "Vis", "SN", "Limbic", "Default"]),
    ],
)
def test_what_a_column_says(structure, texts):
    assert [structure_of_text(text) for text in texts] == [structure] * len(texts)


NAMES = ["L_caudalmiddlefrontal", "Lput", "Lthal", *(f"L_{name}" for name in DESIKAN[3:13])]


def brain(**columns):
    rng, index = np.random.default_rng(0), pd.Index(NAMES, name="region")
    expression = pd.DataFrame(rng.random((13, 11)), index, [f"GENE{g}" for g in range(11)])
    places = pd.DataFrame(rng.normal(size=(13, 3)) * 40, index, ["x", "y", "z"]).assign(**columns)
    return read_regions(expression, coordinates=places)


def test_names_tell_where_files_do_not():
    found = brain()
    assert found.structure is None
    assert groups_of(found) == ["cortex", "subcortex", "subcortex"] + ["cortex"] * 10
    assert brain(structure="frontal").structure is None


@pytest.mark.parametrize(
    ("columns", "structure"),
    [
        ({"structure": ["subcortex", "cortex", ""]}, ["subcortex", "cortex", ""]),
        ({"cortex": [False, True, None]}, ["subcortex", "cortex", ""]),
        ({"structure": ["frontal", "cortex", ""], "cortex": ["no", "no", "no"]}, ["subcortex", "cortex", "subcortex"]),
        ({"network": ["Subcortical", "cortex", "SN"]}, None),
        # A network of its own keeps no file from saying what structure a region is of.
        ({"network": ["Cont", "Vis", "Vis"], "structure": ["subcortex", "cortex", ""]}, ["subcortex", "cortex", ""]),
    ],
)
def test_what_files_say_comes_first(columns, structure):
    found = brain(**{name: values + [values[1]] * 10 for name, values in columns.items()})
    assert found.structure == (None if structure is None else structure + [structure[1]] * 10)
    groups = groups_of(found)
    assert groups[:3] == ["subcortex", "cortex", "subcortex"]  # the third by its name, or by its flag
    assert groups_of(found.take(range(12, -1, -1))) == groups[::-1]
