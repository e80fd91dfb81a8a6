// Brain regions: learn connectivity from the expression of genes, predict pairs, and compare with baselines.
//
// --expression, --connectivity, --coordinates: of the same regions; coordinates may be left away
// --use: pattern of tables of pairs to predict
// --report: also compare with baselines

include { named; option; quoted } from './words'

def optional(name) {
    return params[name] ? file(params[name], checkIfExists: true) : []
}

process REGIONS_FIT {
    label 'learn'
    publishDir "${params.out}/regions", mode: 'copy'

    input:
    path expression
    path connectivity
    path coordinates

    output:
    path 'model'

    script:
    """
    omniset regions fit --expression ${quoted(expression)} --connectivity ${quoted(connectivity)} ${option('coordinates', coordinates)} \\
        --out model --progress false ${params.fit_options}
    """
}

process REGIONS_USE {
    tag "${name}"
    label 'use'
    publishDir "${params.out}/regions", mode: 'copy'

    input:
    tuple val(name), path(pairs)
    path model

    output:
    path "predicted/${name}.csv"

    script:
    """
    mkdir predicted
    omniset regions predict --pairs ${quoted(pairs)} --model ${quoted(model)} --out ${quoted("predicted/${name}.csv")} --progress false \\
        ${params.use_options}
    """
}

process REGIONS_REPORT {
    label 'learn'
    publishDir "${params.out}/regions", mode: 'copy'

    input:
    path expression
    path connectivity
    path coordinates

    output:
    path 'report'

    script:
    """
    omniset regions evaluate --expression ${quoted(expression)} --connectivity ${quoted(connectivity)} ${option('coordinates', coordinates)} \\
        --out report --progress false ${params.report_options}
    """
}

workflow REGIONS {
    expression = file(params.expression, checkIfExists: true)
    connectivity = file(params.connectivity, checkIfExists: true)
    coordinates = optional('coordinates')
    model = REGIONS_FIT(expression, connectivity, coordinates)
    if (params.use) {
        REGIONS_USE(Channel.fromPath(params.use, checkIfExists: true).map { file -> tuple(named(file), file) }, model)
    }
    if (params.report) {
        REGIONS_REPORT(expression, connectivity, coordinates)
    }
}
