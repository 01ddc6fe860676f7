"""The card: one mixer, a fixed battery of questions, the field beside it (`assay card`)."""
