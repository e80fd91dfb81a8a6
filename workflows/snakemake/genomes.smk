"""Gene content: learn from complete genomes, complete others, and compare with baselines on unseen clades.

Config:
    table, taxonomy: Gene families of complete genomes; their taxonomy may be left away.
    new: Tables of annotations to complete, {name: file or folder}; written to OUT/completed/NAME/.
    quality: Completeness and contamination of these, such as CheckM2's; may be left away.
    options: Further words of the commands, {fit: ..., use: ..., report: ...}.
    out: Folder of what is made. Default: genomes.
    threads, mem_mb, runtime: Of each job; minutes. A job that reaches a limit is tried again with more, and goes on.
"""


include: "common.smk"


OUT = config.get("out", "genomes")
OPTIONS = config.get("options", {})
MODEL = [f"{OUT}/model/{name}" for name in ("config.json", "model.safetensors", "report.html")]


rule all:
    input:
        MODEL,
        expand(f"{OUT}/completed/{{name}}/summary.tsv", name=config.get("new", {})),


rule fit:
    input:
        table=config["table"],
        **given("taxonomy"),
    output:
        MODEL,
    params:
        out=OUT,
        options=OPTIONS.get("fit", ""),
        files=words(given("taxonomy")),
    threads: config.get("threads", 1)
    retries: 2
    resources:
        mem_mb=of_attempt("mem_mb", 4000),
        runtime=of_attempt("runtime", 60),
        resume=resume,
    shell:
        "export OMP_NUM_THREADS={threads}; "
        "omniset genomes fit {input.table:q} {params.files} --out {params.out:q}/model --progress false "
        "--resume $([ {resources.resume} = 1 ] && echo true || echo false) {params.options}"


rule use:
    input:
        MODEL,
        **given("quality"),
        table=lambda wildcards: config["new"][wildcards.name],
    output:
        calls=f"{OUT}/completed/{{name}}/calls.tsv",
        probabilities=f"{OUT}/completed/{{name}}/probabilities.tsv",
        summary=f"{OUT}/completed/{{name}}/summary.tsv",
        report=report(
            f"{OUT}/completed/{{name}}/report.html",
            category="Omniset",
            labels={"system": "genomes", "of": "{name}"},
        ),
    params:
        out=OUT,
        options=OPTIONS.get("use", ""),
        files=words(given("quality")),
    threads: config.get("threads", 1)
    retries: 2
    resources:
        mem_mb=of_attempt("mem_mb", 4000),
        runtime=of_attempt("runtime", 60),
    shell:
        "export OMP_NUM_THREADS={threads}; "
        "omniset genomes complete {input.table:q} {params.files} --model {params.out:q}/model --progress false "
        "--out {params.out:q}/completed/{wildcards.name:q} {params.options}"


rule report:
    input:
        table=config["table"],
        **given("taxonomy"),
    output:
        report(f"{OUT}/report/report.html", category="Omniset", labels={"system": "genomes"}),
        f"{OUT}/report/metrics.json",
    params:
        out=OUT,
        options=OPTIONS.get("report", ""),
        files=words(given("taxonomy")),
    threads: config.get("threads", 1)
    retries: 2
    resources:
        mem_mb=of_attempt("mem_mb", 4000),
        runtime=of_attempt("runtime", 480),
        resume=resume,
    shell:
        "export OMP_NUM_THREADS={threads}; "
        "omniset genomes evaluate {input.table:q} {params.files} --out {params.out:q}/report --progress false "
        "--resume $([ {resources.resume} = 1 ] && echo true || echo false) {params.options}"
