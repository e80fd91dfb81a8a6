// Gene content: learn from complete genomes, complete others, and compare with baselines on unseen clades.
//
// --table, --taxonomy: gene families of complete genomes; their taxonomy may be left away
// --use: pattern of tables of annotations to complete
// --quality: their completeness and contamination; may be left away
// --report: also compare with baselines

include { named; option; quoted } from './words'

def optional(name) {
    return params[name] ? file(params[name], checkIfExists: true) : []
}

process GENOMES_FIT {
    label 'learn'
    publishDir "${params.out}/genomes", mode: 'copy'

    input:
    path table
    path taxonomy

    output:
    path 'model'

    script:
    """
    omniset genomes fit ${quoted(table)} ${option('taxonomy', taxonomy)} --out model --progress false \\
        ${params.fit_options}
    """
}

process GENOMES_USE {
    tag "${name}"
    label 'use'
    publishDir "${params.out}/genomes", mode: 'copy'

    input:
    tuple val(name), path(table)
    path model
    path quality

    output:
    path "completed/${name}"

    script:
    """
    omniset genomes complete ${quoted(table)} --model ${quoted(model)} ${option('quality', quality)} \\
        --out ${quoted("completed/${name}")} --progress false ${params.use_options}
    """
}

process GENOMES_REPORT {
    label 'learn'
    publishDir "${params.out}/genomes", mode: 'copy'

    input:
    path table
    path taxonomy

    output:
    path 'report'

    script:
    """
    omniset genomes evaluate ${quoted(table)} ${option('taxonomy', taxonomy)} --out report --progress false \\
        ${params.report_options}
    """
}

workflow GENOMES {
    table = file(params.table, checkIfExists: true)
    taxonomy = optional('taxonomy')
    model = GENOMES_FIT(table, taxonomy)
    if (params.use) {
        genomes = Channel.fromPath(params.use, checkIfExists: true).map { file -> tuple(named(file), file) }
        GENOMES_USE(genomes, model, optional('quality'))
    }
    if (params.report) {
        GENOMES_REPORT(table, taxonomy)
    }
}
