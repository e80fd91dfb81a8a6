// One system, by its module: nextflow run main.nf --system genomes --table families.tsv --use 'mags/*.tsv'

include { SETS } from './modules/sets'
include { GENOMES } from './modules/genomes'
include { CELLS } from './modules/cells'
include { REGIONS } from './modules/regions'
include { MICROBIOMES } from './modules/microbiomes'

workflow {
    if (params.system == 'sets') {
        SETS()
    } else if (params.system == 'genomes') {
        GENOMES()
    } else if (params.system == 'cells') {
        CELLS()
    } else if (params.system == 'regions') {
        REGIONS()
    } else if (params.system == 'microbiomes') {
        MICROBIOMES()
    } else {
        error "system must be sets, genomes, cells, regions or microbiomes, got '${params.system}'"
    }
}
