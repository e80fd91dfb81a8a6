// The scripts of all processes, filled in as Nextflow does, with names that have to be quoted: groovy try.groovy modules
//
// Not Nextflow: files are stand-ins, and nothing is staged. .ci/flows gives what is printed to a shell.

class Staged {
    String name

    String toString() { name }
}

def modules = new File(args[0])
def shared = new File(modules, 'words.nf').text
def hostile = "O'Brien \$1 bin.1"
def given = [
    files: [new Staged(name: hostile + '.h5ad'), new Staged(name: 'two.h5ad')],
    model: new Staged(name: 'model'),
    quality: [],  // not given
]
def options = [batch_key: "patient's", label_key: 'cell type', fit_options: '--seed 1', use_options: '', report_options: '']

assert new GroovyShell(new Binding(files: ['bin.1.fa', 'a b.fastq.gz'].collect { new Staged(name: it) }))
    .evaluate(shared + '\nfiles.collect { named(it) }') == ['bin.1', 'a b']

modules.listFiles().findAll { it.name != 'words.nf' }.sort { it.name }.each { module ->
    def process = module.text =~ /(?s)process \w+ \{.*?input:(.*?)output:.*?script:\s*(""".*?""")/
    assert process.count == 3
    process.each { whole, inputs, script ->
        def binding = new Binding(params: options, name: hostile)
        (inputs =~ /path\(?\s*(\w+)/).each { all, name ->
            binding.setVariable(name, given.get(name, new Staged(name: hostile + '.tsv')))
        }
        println new GroovyShell(binding).evaluate(shared + '\n' + script)
    }
}
