"""Brain regions: learn connectivity from the expression of genes, predict pairs, and compare with baselines.

Config:
    expression, connectivity, coordinates: Of the same regions; coordinates may be left away.
    new: Tables of pairs to predict, {name: file}; written to OUT/predicted/NAME.csv.
    options: Further words of the commands, {fit: ..., use: ..., report: ...}.
    out: Folder of what is made. Default: regions.
    threads, mem_mb, runtime: Of each job; minutes. A job that reaches a limit is tried again with more, and goes on.
"""


include: "common.smk"


OUT = config.get("out", "regions")
OPTIONS = config.get("options", {})
MODEL = [f"{OUT}/model/{name}" for name in ("config.json", "model.safetensors", "report.html")]
FILES = given("expression", "connectivity", "coordinates")


rule all:
    input:
        MODEL,
        expand(f"{OUT}/predicted/{{name}}.csv", name=config.get("new", {})),


rule fit:
    input:
        **FILES,
    output:
        MODEL,
    params:
        out=OUT,
        options=OPTIONS.get("fit", ""),
        files=words(FILES),
    threads: config.get("threads", 1)
    retries: 2
    resources:
        mem_mb=of_attempt("mem_mb", 4000),
        runtime=of_attempt("runtime", 60),
        resume=resume,
    shell:
        "export OMP_NUM_THREADS={threads}; "
        "omniset regions fit {params.files} --out {params.out:q}/model --progress false "
        "--resume $([ {resources.resume} = 1 ] && echo true || echo false) {params.options}"


rule use:
    input:
        MODEL,
        pairs=lambda wildcards: config["new"][wildcards.name],
    output:
        f"{OUT}/predicted/{{name}}.csv",
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
        "omniset regions predict --pairs {input.pairs:q} --model {params.out:q}/model --out {output:q} --progress false "
        "{params.options}"


rule report:
    input:
        **FILES,
    output:
        report(f"{OUT}/report/report.html", category="Omniset", labels={"system": "regions"}),
        f"{OUT}/report/metrics.json",
    params:
        out=OUT,
        options=OPTIONS.get("report", ""),
        files=words(FILES),
    threads: config.get("threads", 1)
    retries: 2
    resources:
        mem_mb=of_attempt("mem_mb", 4000),
        runtime=of_attempt("runtime", 480),
        resume=resume,
    shell:
        "export OMP_NUM_THREADS={threads}; "
        "omniset regions evaluate {params.files} --out {params.out:q}/report --progress false "
        "--resume $([ {resources.resume} = 1 ] && echo true || echo false) {params.options}"
