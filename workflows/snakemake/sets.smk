"""Tables of sets: learn, predict new ones, and judge on sets that were held out.

Config:
    sets, target: Table of sets, and their labels.
    new: Tables to predict, {name: file}; written to OUT/predictions/NAME.csv.
    held_out: Table and labels for the rule `report`, {sets: ..., target: ...}.
    options: Further words of the commands, {fit: ..., use: ..., report: ...}.
    out: Folder of what is made. Default: sets.
    threads, mem_mb, runtime: Of each job; minutes. A job that reaches a limit is tried again with more, and goes on.
"""


include: "common.smk"


OUT = config.get("out", "sets")
OPTIONS = config.get("options", {})
MODEL = [f"{OUT}/model/{name}" for name in ("config.json", "model.safetensors", "report.html")]


rule all:
    input:
        MODEL,
        expand(f"{OUT}/predictions/{{name}}.csv", name=config.get("new", {})),


rule fit:
    input:
        sets=config["sets"],
        target=config["target"],
    output:
        MODEL,
    params:
        out=OUT,
        options=OPTIONS.get("fit", ""),
    threads: config.get("threads", 1)
    retries: 2
    resources:
        mem_mb=of_attempt("mem_mb", 4000),
        runtime=of_attempt("runtime", 60),
        resume=resume,
    shell:
        "export OMP_NUM_THREADS={threads}; "
        "omniset fit {input.sets:q} --target {input.target:q} --out {params.out:q}/model --progress false "
        "--resume $([ {resources.resume} = 1 ] && echo true || echo false) {params.options}"


rule use:
    input:
        MODEL,
        sets=lambda wildcards: config["new"][wildcards.name],
    output:
        f"{OUT}/predictions/{{name}}.csv",
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
        "omniset predict {input.sets:q} --model {params.out:q}/model --out {output:q} --progress false {params.options}"


rule report:
    input:
        MODEL,
        sets=config.get("held_out", {}).get("sets", []),
        target=config.get("held_out", {}).get("target", []),
    output:
        report(f"{OUT}/report/report.html", category="Omniset", labels={"system": "sets"}),
        f"{OUT}/report/metrics.json",
    params:
        out=OUT,
        options=OPTIONS.get("report", ""),
    threads: config.get("threads", 1)
    retries: 2
    resources:
        mem_mb=of_attempt("mem_mb", 4000),
        runtime=of_attempt("runtime", 60),
    shell:
        "export OMP_NUM_THREADS={threads}; "
        "omniset evaluate {input.sets:q} --target {input.target:q} --model {params.out:q}/model --out {params.out:q}/report "
        "--progress false {params.options}"
