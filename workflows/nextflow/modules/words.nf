// What the modules share: words of a command line, whatever is in the names of files.
//
// Nextflow puts backslashes before quotes and blanks of a path where it stands in a script, which would be wrong between
// quotes, and before no $. Names are text, and are quoted here. (It links no file with a $ in its name.)

// Text, or the name of a file that is staged, as one word of the shell; of several files a word each.
def quoted(value) {
    if (value instanceof Collection) {
        return value.collect { one -> quoted(one) }.join(' ')
    }
    return "'" + value.toString().replace("'", "'\\''") + "'"
}

// An option with its value; nothing without a value.
def option(name, value) {
    return value ? "--${name} ${quoted(value)}" : ''
}

// What a file's results are called: bin.1 of bin.1.fa, and reads of reads.fastq.gz.
def named(file) {
    return file.name.replaceFirst(/\.(gz|bz2|xz)$/, '').replaceFirst(/\.[^.]+$/, '')
}
