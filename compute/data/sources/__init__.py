"""Where rows come from: arrays, files of several formats, folders of images, tables of other libraries."""
