// Tables of sets: learn, predict new ones, and judge on sets that were held out.
//
// --sets, --target: table of sets, and their labels
// --use: pattern of tables to predict
// --held_out, --held_out_target: table and labels for the report

include { named; option; quoted } from './words'

process SETS_FIT {
    label 'learn'
    publishDir "${params.out}/sets", mode: 'copy'

    input:
    path sets
    path target

    output:
    path 'model'

    script:
    """
    omniset fit ${quoted(sets)} --target ${quoted(target)} --out model --progress false ${params.fit_options}
    """
}

process SETS_USE {
    tag "${name}"
    label 'use'
    publishDir "${params.out}/sets", mode: 'copy'

    input:
    tuple val(name), path(sets)
    path model

    output:
    path "predictions/${name}.csv"

    script:
    """
    mkdir predictions
    omniset predict ${quoted(sets)} --model ${quoted(model)} --out ${quoted("predictions/${name}.csv")} --progress false ${params.use_options}
    """
}

process SETS_REPORT {
    label 'learn'
    publishDir "${params.out}/sets", mode: 'copy'

    input:
    path sets
    path target
    path model

    output:
    path 'report'

    script:
    """
    omniset evaluate ${quoted(sets)} --target ${quoted(target)} --model ${quoted(model)} --out report --progress false \\
        ${params.report_options}
    """
}

workflow SETS {
    model = SETS_FIT(file(params.sets, checkIfExists: true), file(params.target, checkIfExists: true))
    if (params.use) {
        SETS_USE(Channel.fromPath(params.use, checkIfExists: true).map { file -> tuple(named(file), file) }, model)
    }
    if (params.held_out) {
        SETS_REPORT(file(params.held_out, checkIfExists: true), file(params.held_out_target, checkIfExists: true), model)
    }
}
