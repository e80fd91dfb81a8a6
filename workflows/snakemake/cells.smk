"""Single cells: learn vectors of cells, embed others, and compare with other methods by labels.

Config:
    files: .h5ad files or zarr stores to learn from, a list.
    batch_key: Column of obs with the batch.
    label_key: Column of obs with the cell types, for the rule `report`.
    new: Files to embed, {name: file}; written to OUT/embedded/NAME.h5ad.
    options: Further words of the commands, {fit: ..., use: ..., report: ...}.
    out: Folder of what is made. Default: cells.
    threads, mem_mb, runtime: Of each job; minutes. A job that reaches a limit is tried again with more, and goes on.
"""


include: "common.smk"


OUT = config.get("out", "cells")
OPTIONS = config.get("options", {})
MODEL = [f"{OUT}/model/{name}" for name in ("config.json", "model.safetensors", "report.html")]
BATCH = words(given("batch_key"))


rule all:
    input:
        MODEL,
        expand(f"{OUT}/embedded/{{name}}.h5ad", name=config.get("new", {})),


rule fit:
    input:
        files=config["files"],
    output:
        MODEL,
    params:
        out=OUT,
        options=OPTIONS.get("fit", ""),
        batch=BATCH,
    threads: config.get("threads", 1)
    retries: 2
    resources:
        mem_mb=of_attempt("mem_mb", 8000),
        runtime=of_attempt("runtime", 240),
        resume=resume,
    shell:
        "export OMP_NUM_THREADS={threads}; "
        "omniset cells fit {input.files:q} {params.batch} --out {params.out:q}/model --progress false "
        "--resume $([ {resources.resume} = 1 ] && echo true || echo false) {params.options}"


rule use:
    input:
        MODEL,
        file=lambda wildcards: config["new"][wildcards.name],
    output:
        f"{OUT}/embedded/{{name}}.h5ad",
    params:
        out=OUT,
        options=OPTIONS.get("use", ""),
    threads: config.get("threads", 1)
    retries: 2
    resources:
        mem_mb=of_attempt("mem_mb", 8000),
        runtime=of_attempt("runtime", 60),
    shell:
        "export OMP_NUM_THREADS={threads}; "
        "omniset cells embed {input.file:q} --model {params.out:q}/model --out {output:q} --progress false {params.options}"


rule report:
    input:
        files=config["files"],
    output:
        report(f"{OUT}/report/report.html", category="Omniset", labels={"system": "cells"}),
        f"{OUT}/report/metrics.json",
    params:
        out=OUT,
        options=OPTIONS.get("report", ""),
        batch=BATCH,
        label=config.get("label_key", "cell_type"),
    threads: config.get("threads", 1)
    retries: 2
    resources:
        mem_mb=of_attempt("mem_mb", 8000),
        runtime=of_attempt("runtime", 480),
        resume=resume,
    shell:
        "export OMP_NUM_THREADS={threads}; "
        "omniset cells evaluate {input.files:q} {params.batch} --label_key {params.label:q} --out {params.out:q}/report "
        "--progress false "
        "--resume $([ {resources.resume} = 1 ] && echo true || echo false) {params.options}"
