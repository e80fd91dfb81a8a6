"""Vectors of genes from proteins: headers of databases, means over residues, whatever is read together."""

import numpy as np
import pytest
import torch

from omniset.cells import proteins as module
from omniset.cells.proteins import ProteinModel, gene_of, read_proteins
from omniset.cli import main
from omniset.tables.gene_vectors import read_gene_vectors

VOCABULARY = "<cls> <pad> <eos> <unk> L A G V S E R T I D P K Q N F Y M H W C X B U Z O . - <null_1> <mask>"
FASTA = """>sp|P04637|P53_HUMAN Cellular tumor antigen OS=Homo sapiens GN=TP53 PE=1 SV=4
MEEPQSDP
SVEPPLSQ
>ENSP01.1 pep chromosome:GRCh38 gene:ENSG00000141510.18 transcript:ENST01.9 gene_symbol:TP53 description:x
MEEPQ*
>ENSP02.1|ENST02.1|ENSG00000186092.7|OTTHUMG1.4|OTTHUMT1.1|OR4F5-201|OR4F5|326
MKTA
>again gene_symbol:OR4F5
mkta
>lcl|NC_1_prot_1 [gene=dnaA] [locus_tag=b3702]
MSLSLWQQCL
>plain
MK
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small ESM, as transformers saves it."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("esm")
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY.split()))
    transformers.EsmTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    tokens = {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32, "position_embedding_type": "rotary"}
    config = transformers.EsmConfig(**sizes, **tokens, token_dropout=True)
    transformers.EsmModel(config, add_pooling_layer=False).save_pretrained(folder)
    return folder


def test_genes_are_found_in_headers(tmp_path):
    (tmp_path / "a.fa").write_text(FASTA)
    found = read_proteins([tmp_path / "a.fa"])
    expected = {"TP53": ["MEEPQSDPSVEPPLSQ", "MEEPQ"], "OR4F5": ["MKTA"], "dnaA": ["MSLSLWQQCL"], "plain": ["MK"]}
    assert found == expected
    ids = ["P04637", "ENSG00000141510", "ENSG00000186092", "OR4F5", "b3702", "plain"]
    assert [gene_of(line[1:], "id") for line in FASTA.splitlines() if line[0] == ">"] == ids
    (tmp_path / "b.fa").write_text(">a\nMK1\n")
    with pytest.raises(ValueError, match=r"b.fa: line 2: has '1', which is no letter of an amino acid"):
        read_proteins([tmp_path / "b.fa"])


def test_a_protein_is_the_mean_of_its_residues_in_windows(folder, monkeypatch):
    monkeypatch.setattr(module, "LENGTH", 7)
    model = ProteinModel(folder, "cpu")
    texts = ["MEEPQSDPSVEPPLSQ", "MK", "MEEPQSD", "W" * 15]
    found = model(texts)
    letters = VOCABULARY.split()
    for vector, text in zip(found, texts, strict=True):
        states = []
        for start in range(0, len(text), 7):
            tokens = torch.tensor([[0, *(letters.index(letter) for letter in text[start : start + 7]), 2]])
            with torch.no_grad():
                states.append(model.model(tokens)[0][0, 1:-1])
        np.testing.assert_allclose(vector, torch.cat(states).double().mean(0), atol=1e-6)
    monkeypatch.setattr(module, "RESIDUES", 8)  # one or two at a time
    np.testing.assert_allclose(model(texts), found, atol=1e-6)


def test_the_command_writes_what_fit_reads(folder, tmp_path, capsys):
    (tmp_path / "a.fa").write_text(FASTA)
    out = tmp_path / "vectors.safetensors"
    words = ["cells", "vectors", str(tmp_path / "a.fa"), "--device=cpu", "--progress=false"]
    assert main([*words, f"--protein_model={folder}", f"--out={out}"]) == 0
    assert "vectors of 4 genes x 12, of 5 proteins" in capsys.readouterr().out
    read = read_gene_vectors(out)
    assert read.names == ["TP53", "OR4F5", "dnaA", "plain"]
    each = ProteinModel(folder, "cpu")(["MEEPQSDPSVEPPLSQ", "MEEPQ"])
    np.testing.assert_allclose(read.vectors[0], each.mean(0), atol=1e-6)
    for more, error in (
        ([f"--protein_model={tmp_path}", f"--out={out}"], "protein_model must be a folder with a model's config.json"),
        ([f"--protein_model={folder}", "--out=vectors.txt"], "vectors.txt: the name must end in .safetensors"),
    ):
        assert main([*words, *more]) == 2
        assert error in capsys.readouterr().err
