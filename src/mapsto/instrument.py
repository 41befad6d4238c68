"""The names of General MIDI: 128 instruments, the drums, and what each drum is called."""

__all__ = ["DRUMS", "instrument", "pitch"]

DRUMS = 128
"""The instrument that stands for all drums: its pitches are not heights but drums."""


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


INSTRUMENTS = _names("""
    acoustic grand piano, bright acoustic piano, electric grand piano, honky-tonk piano, electric piano 1,
    electric piano 2, harpsichord, clavinet, celesta, glockenspiel, music box, vibraphone, marimba, xylophone,
    tubular bells, dulcimer, drawbar organ, percussive organ, rock organ, church organ, reed organ, accordion, harmonica,
    tango accordion, nylon guitar, steel guitar, jazz guitar, clean guitar, muted guitar, overdriven guitar,
    distortion guitar, guitar harmonics, acoustic bass, fingered bass, picked bass, fretless bass, slap bass 1,
    slap bass 2, synth bass 1, synth bass 2, violin, viola, cello, contrabass, tremolo strings, pizzicato strings,
    orchestral harp, timpani, string ensemble 1, string ensemble 2, synth strings 1, synth strings 2, choir aahs,
    voice oohs, synth voice, orchestra hit, trumpet, trombone, tuba, muted trumpet, french horn, brass section,
    synth brass 1, synth brass 2, soprano sax, alto sax, tenor sax, baritone sax, oboe, english horn, bassoon, clarinet,
    piccolo, flute, recorder, pan flute, blown bottle, shakuhachi, whistle, ocarina, square lead, sawtooth lead,
    calliope lead, chiff lead, charang lead, voice lead, fifths lead, bass and lead, new age pad, warm pad,
    polysynth pad, choir pad, bowed pad, metallic pad, halo pad, sweep pad, rain, soundtrack, crystal, atmosphere,
    brightness, goblins, echoes, sci-fi, sitar, banjo, shamisen, koto, kalimba, bagpipe, fiddle, shanai, tinkle bell,
    agogo, steel drums, woodblock, taiko drum, melodic tom, synth drum, reverse cymbal, fret noise, breath noise,
    seashore, bird tweet, telephone, helicopter, applause, gunshot, drums
""")

FIRST = 35
KIT = _names("""
    acoustic bass drum, bass drum, side stick, acoustic snare, hand clap, electric snare, low floor tom, closed hi-hat,
    high floor tom, pedal hi-hat, low tom, open hi-hat, low-mid tom, high-mid tom, crash cymbal 1, high tom,
    ride cymbal 1, chinese cymbal, ride bell, tambourine, splash cymbal, cowbell, crash cymbal 2, vibraslap,
    ride cymbal 2, high bongo, low bongo, mute high conga, open high conga, low conga, high timbale, low timbale,
    high agogo, low agogo, cabasa, maracas, short whistle, long whistle, short guiro, long guiro, claves,
    high woodblock, low woodblock, mute cuica, open cuica, mute triangle, open triangle
""")
LETTERS = ("C", "C#", "D", "D#", "E", "F", "F#", "G", "G#", "A", "A#", "B")


def instrument(number: int) -> str:
    """The name of an instrument, 0 to 127, or ``drums`` for 128.

    Example:
        >>> instrument(0), instrument(128)
        ('acoustic grand piano', 'drums')
    """
    return INSTRUMENTS[number]


def pitch(number: int, *, drum: bool = False) -> str:
    """The name of a pitch, 0 to 127, where 60 is C4; or of a drum.

    Example:
        >>> pitch(60), pitch(70), pitch(38, drum=True), pitch(3, drum=True)
        ('C4', 'A#4', 'acoustic snare', 'drum 3')
    """
    if not drum:
        return f"{LETTERS[number % 12]}{number // 12 - 1}"
    return KIT[number - FIRST] if FIRST <= number < FIRST + len(KIT) else f"drum {number}"
