"""The vocabulary of prompts: short common words, which tokenizers for English mostly take as one token."""

_TEXT = """
able about above across act add after again age ago air all along also always among and another any
appear area arm around art ask away baby back bad bag ball bank base be bear beat became because bed
been before began behind best better between big bird bit black blood blue board boat body bone book
both bottom box boy bring brother brought build built burn bus business but buy by call came camp can
car care carry case cat catch caught cause cell center chair change check child city class clean clear
climb close clothes cloud coat cold color come common cook cool copy corn corner cost could count
country course cover cow cross cry cut dance dark day dead deal deep did die different dinner direct do
doctor does dog done door double down draw dream dress drink drive drop dry during each ear early earth
east easy eat edge egg eight either else end energy enough even ever every eye face fact fall family far
farm fast father fear feel feet few field fight figure fill final find fine finger finish fire first
fish fit five floor flow flower fly follow food foot for force form forward found four free fresh friend
from front fruit full fun game garden gas gave get girl give glad glass go gold gone good got great
green ground group grow guess had hair half hand happen happy hard has hat have he head hear heart heat
heavy help her here high hill him his hit hold hole home horse hot hour house how huge human hundred ice
idea if in inch industry iron is island it job join jump just keep key kind king knew know lady lake
land language large last late laugh law lay lead learn leave left leg less let letter level lie life
lift light like line list listen little live log long look lost lot love low machine made main make man
many map mark market matter may me mean measure meat meet men metal middle might mile milk mind minute
miss money month moon more morning most mother mountain mouth move much music must my name near neck
need never new next night nine no noise north nose not note nothing notice now number object of off
office often oil old on once one only open or order other our out outside over own page paint pair paper
part party pass past path pay people perhaps person picture piece place plan plane plant play point poor
post power press print problem product pull push put quick quiet quite race radio rain raise ran reach
read ready real reason record red rest result rich ride right ring rise river road rock room root rope
rose round row rule run safe said sail salt same sand sat save saw say school science sea seat second
see seed seem sell send sense sent set seven shape share sharp she ship shoe shop short should shout
show side sign silver simple since sing sister sit six size skin sky sleep slip slow small smell smile
snow so soft soil some son song soon sound south space speak special speed spend spot spring square
stand star start state stay steel step stick still stone stood stop store story street strong such sugar
summer sun sure surface swim system table tail take talk tall teach team tell ten test than that the
their them then there these they thick thin thing think third this those though three through time tiny
to today together told tone too took tool top total touch toward town track trade train tree trip true
try turn two type uncle under unit until up us use valley very view village visit voice wait walk wall
want war warm was wash watch water wave way we wear weather week weight well went were west what wheel
when where which white who whole why wide wife wild will win wind window winter wire wish with woman
wood word work world would write wrong yard year yellow yes yet you young your
"""
WORDS = tuple(_TEXT.split())
