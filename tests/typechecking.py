"""beartype as the studies are written: a whole number is a float, as PEP 484 says."""

from beartype import BeartypeConf, beartype

with_integers_as_floats = beartype(conf=BeartypeConf(is_pep484_tower=True))
