"""Microbiomes: learn taxa from references, name the reads of samples, and compare with other methods.

Config:
    references, taxonomy: FASTA of reference sequences, and their taxa.
    profiles: Feature table of communities to learn from; may be left away.
    new: Files of reads, {sample: file}; written to OUT/classified/SAMPLE/.
    options: Further words of the commands, {fit: ..., use: ..., report: ...}.
    out: Folder of what is made. Default: microbiomes.
    threads, mem_mb, runtime: Of each job; minutes. A job that reaches a limit is tried again with more, and goes on.
"""


include: "common.smk"


OUT = config.get("out", "microbiomes")
OPTIONS = config.get("options", {})
MODEL = [f"{OUT}/model/{name}" for name in ("config.json", "model.safetensors", "report.html")]


rule all:
    input:
        MODEL,
        expand(f"{OUT}/classified/{{name}}/taxonomy.tsv", name=config.get("new", {})),


rule fit:
    input:
        **given("references", "taxonomy", "profiles"),
    output:
        MODEL,
    params:
        out=OUT,
        options=OPTIONS.get("fit", ""),
        files=words(given("references", "taxonomy", "profiles")),
    threads: config.get("threads", 1)
    retries: 2
    resources:
        mem_mb=of_attempt("mem_mb", 8000),
        runtime=of_attempt("runtime", 240),
        resume=resume,
    shell:
        "export OMP_NUM_THREADS={threads}; "
        "omniset microbiomes fit {params.files} --out {params.out:q}/model --progress false "
        "--resume $([ {resources.resume} = 1 ] && echo true || echo false) {params.options}"


rule use:
    input:
        MODEL,
        reads=lambda wildcards: config["new"][wildcards.name],
    output:
        taxonomy=f"{OUT}/classified/{{name}}/taxonomy.tsv",
        calls=f"{OUT}/classified/{{name}}/calls.tsv.gz",
        abundance=f"{OUT}/classified/{{name}}/abundance.tsv",
        report=report(
            f"{OUT}/classified/{{name}}/report.html",
            category="Omniset",
            labels={"system": "microbiomes", "of": "{name}"},
        ),
    params:
        out=OUT,
        options=OPTIONS.get("use", ""),
    threads: config.get("threads", 1)
    retries: 2
    resources:
        mem_mb=of_attempt("mem_mb", 4000),
        runtime=of_attempt("runtime", 60),
    shell:
        "export OMP_NUM_THREADS={threads}; "
        "omniset microbiomes classify {input.reads:q} --model {params.out:q}/model --progress false "
        "--out {params.out:q}/classified/{wildcards.name:q} {params.options}"


rule report:
    input:
        **given("references", "taxonomy"),
    output:
        report(f"{OUT}/report/report.html", category="Omniset", labels={"system": "microbiomes"}),
        f"{OUT}/report/metrics.json",
    params:
        out=OUT,
        options=OPTIONS.get("report", ""),
        files=words(given("references", "taxonomy")),
    threads: config.get("threads", 1)
    retries: 2
    resources:
        mem_mb=of_attempt("mem_mb", 8000),
        runtime=of_attempt("runtime", 480),
        resume=resume,
    shell:
        "export OMP_NUM_THREADS={threads}; "
        "omniset microbiomes evaluate {params.files} --out {params.out:q}/report --progress false "
        "--resume $([ {resources.resume} = 1 ] && echo true || echo false) {params.options}"
