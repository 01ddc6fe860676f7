"""`assay card` asks one mixer, or one attention method, a fixed battery of questions, with the field beside it."""
