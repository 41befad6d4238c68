"""The laws as checks: for the kinds of this library and for your own.

Each check tries every law that applies and gives a list of verdicts; :func:`require` raises what is broken::

    from mapsto.testing import check_attention, require

    def test_my_attention_keeps_the_laws():
        require(check_attention(MyAttention))

The laws, by letter: P padding changes nothing, B nor does company, S nor the order of a set, C nor the future;
T steps equal the whole; M a query with nothing to see gets zeros; K finite numbers stay finite; D the same seed gives
the same bits, and nothing is written to; R what is saved comes back; G one graph serves all lengths; W a window is
exact attention over a band of ranks; F random features have no bias; H a hard choice is one key, and learns; L a density
integrates to one; E the bounds of an autoencoder are bounds of what they say; N and its KL has the right sign.
"""

from mapsto.testing.attention import check_attention
from mapsto.testing.evidence import check_evidence
from mapsto.testing.input import check_input
from mapsto.testing.likelihood import check_likelihood
from mapsto.testing.model import check_model
from mapsto.testing.output import check_output
from mapsto.testing.verdict import LawError, Verdict, require

__all__ = [
    "LawError",
    "Verdict",
    "check_attention",
    "check_evidence",
    "check_input",
    "check_likelihood",
    "check_model",
    "check_output",
    "require",
]
