// Single cells: learn vectors of cells, embed others, and compare with other methods by labels.
//
// --files: pattern of .h5ad files to learn from
// --batch_key: column of obs with the batch
// --use: pattern of files to embed
// --report, --label_key: also compare with other methods, by this column of obs

include { named; option; quoted } from './words'

process CELLS_FIT {
    label 'learn'
    publishDir "${params.out}/cells", mode: 'copy'

    input:
    path files

    output:
    path 'model'

    script:
    """
    omniset cells fit ${quoted(files)} ${option('batch_key', params.batch_key)} --out model \\
        --progress false ${params.fit_options}
    """
}

process CELLS_USE {
    tag "${name}"
    label 'use'
    publishDir "${params.out}/cells", mode: 'copy'

    input:
    tuple val(name), path(file)
    path model

    output:
    path "embedded/${name}.h5ad"

    script:
    """
    mkdir embedded
    omniset cells embed ${quoted(file)} --model ${quoted(model)} --out ${quoted("embedded/${name}.h5ad")} --progress false ${params.use_options}
    """
}

process CELLS_REPORT {
    label 'learn'
    publishDir "${params.out}/cells", mode: 'copy'

    input:
    path files

    output:
    path 'report'

    script:
    """
    omniset cells evaluate ${quoted(files)} ${option('batch_key', params.batch_key)} --out report \\
        ${option('label_key', params.label_key)} --progress false ${params.report_options}
    """
}

workflow CELLS {
    files = file(params.files, checkIfExists: true)
    model = CELLS_FIT(files)
    if (params.use) {
        CELLS_USE(Channel.fromPath(params.use, checkIfExists: true).map { file -> tuple(named(file), file) }, model)
    }
    if (params.report) {
        CELLS_REPORT(files)
    }
}
