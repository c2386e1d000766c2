"""Word lists. Names stand for projects in facts; the rest makes prose."""


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NAMES = _split(
    """
    atlas beacon comet delta ember falcon glacier harbor indigo jasper kestrel lumen meteor nimbus
    orchid pioneer quartz raven saffron tundra umbra vertex willow xenon yarrow zephyr aurora basil
    cobalt drift echo fern granite hazel iris juniper koala lotus maple nova onyx pearl quill river
    sierra tango ultra violet walnut yonder zenith anchor bison cedar dune eagle flint grove heron
    island jade kite lark mesa north oak pine quest ridge stone thorn unity vale wolf apollo badger
    canyon dragon engine forest garden hammer ivory jungle kernel lagoon marble nectar ocean panda
    rocket silver tiger valley winter amber bridge castle desert
    """
)
DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")

NOUNS = _split(
    """
    house road water paper window morning evening teacher student doctor friend garden kitchen table
    letter answer question story picture number market station train ship city country village field
    mountain summer year week month hour minute world people child family mother father music song
    light night door floor wall street school office company report meeting project system machine
    computer program message network server file page book library language word sentence problem
    reason result plan idea game team price money order list line place point part group government
    law history science nature animal bird tree flower weather rain snow wind fire food bread coffee
    dinner shop customer service product price bank car bicycle engine bridge tower room bed clock
    key box bag shoe coat hand head eye face heart voice body sound color shape image camera map
    """
)
VERBS = _split(
    """
    opened closed found lost moved carried watched followed finished started wrote read made built
    sold bought brought kept left reached crossed changed checked cleaned covered described drew
    expected explained forgot gave held heard helped improved joined knew learned liked measured met
    missed needed noticed offered paid passed placed planned played prepared pulled pushed put
    received remembered repaired replaced returned saved saw sent showed stopped studied took taught
    tested told tried turned used visited wanted washed won
    """
)
ADJECTIVES = _split(
    """
    old new small large long short quiet loud bright dark early late good bad easy hard simple
    careful strong weak warm cold clean empty full open closed young happy sad quick slow heavy soft
    sharp round flat deep high low rich poor strange common public private local foreign modern
    wooden green golden ordinary important possible different similar second last next whole
    """
)
ADVERBS = _split(
    """
    quickly slowly carefully quietly often never always sometimes again soon later early together
    alone outside inside nearby today yesterday tomorrow finally suddenly usually almost perhaps
    already
    """
)
PEOPLE = _split(
    """
    Anna Ben Clara David Emma Felix Grace Henry Ivan Julia Karl Laura Maria Noah Olivia Peter Rosa
    Sam Tina Victor Mrs Mr Dr Smith Jones Brown Miller Wilson Taylor Lopez Chen Kumar Novak
    """
)
PLACES = _split(
    """
    London Paris Berlin Madrid Rome Vienna Oslo Boston Chicago Toronto Cairo Delhi Tokyo Seoul
    Sydney Europe Africa Asia America Canada France Spain Italy Japan India China Brazil
    """
)
SMALL = _split(
    """
    the a an and or but if because when while that which who what where how why this these those it
    its he she they we you I his her their our your my not no yes is are was were be been has have
    had do does did will would can could should may might must of in on at to for from with by about
    into over under between through after before during without as than so very more most some any
    each every all both few many much other another such only also just then there here now up down
    out off again
    """
)
SYLLABLES = tuple(consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeio")
