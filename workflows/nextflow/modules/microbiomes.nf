// Microbiomes: learn taxa from references, name the reads of samples, and compare with other methods.
//
// --references, --taxonomy: FASTA of reference sequences, and their taxa
// --profiles: feature table of communities to learn from; may be left away
// --use: pattern of files of reads, each a sample
// --report: also compare with other methods

include { named; option; quoted } from './words'

def optional(name) {
    return params[name] ? file(params[name], checkIfExists: true) : []
}

process MICROBIOMES_FIT {
    label 'learn'
    publishDir "${params.out}/microbiomes", mode: 'copy'

    input:
    path references
    path taxonomy
    path profiles

    output:
    path 'model'

    script:
    """
    omniset microbiomes fit --references ${quoted(references)} --taxonomy ${quoted(taxonomy)} \\
        ${option('profiles', profiles)} --out model --progress false ${params.fit_options}
    """
}

process MICROBIOMES_USE {
    tag "${name}"
    label 'use'
    publishDir "${params.out}/microbiomes", mode: 'copy'

    input:
    tuple val(name), path(reads)
    path model

    output:
    path "classified/${name}"

    script:
    """
    omniset microbiomes classify ${quoted(reads)} --model ${quoted(model)} --out ${quoted("classified/${name}")} --progress false \\
        ${params.use_options}
    """
}

process MICROBIOMES_REPORT {
    label 'learn'
    publishDir "${params.out}/microbiomes", mode: 'copy'

    input:
    path references
    path taxonomy

    output:
    path 'report'

    script:
    """
    omniset microbiomes evaluate --references ${quoted(references)} --taxonomy ${quoted(taxonomy)} --out report \\
        --progress false ${params.report_options}
    """
}

workflow MICROBIOMES {
    references = file(params.references, checkIfExists: true)
    taxonomy = file(params.taxonomy, checkIfExists: true)
    model = MICROBIOMES_FIT(references, taxonomy, optional('profiles'))
    if (params.use) {
        reads = Channel.fromPath(params.use, checkIfExists: true).map { file -> tuple(named(file), file) }
        MICROBIOMES_USE(reads, model)
    }
    if (params.report) {
        MICROBIOMES_REPORT(references, taxonomy)
    }
}
