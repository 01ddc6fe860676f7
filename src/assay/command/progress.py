"""What a command says while it works: `assay.report.progress`, which Python sessions show too."""

from assay.report.progress import Watch as Watch
from assay.report.progress import say as say
