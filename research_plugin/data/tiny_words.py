"""Word lists of the tiny world: the two halves of every made-up name, and filler text for the tokenizer.

Each half is consonant-vowel-consonant, so the border inside a name always falls between two consonants. Pairs like
that are rare in the other text, hence the byte-pair merges never cross the border and every name is two tokens.
"""

from __future__ import annotations

_HEADS = """
Bal Bel Bor Dal Dor Dum Fal Fem Fir Gal Gor Gul Hal Hem Hol Jar Jem Jul Kal Kem Kor Lam Lor Lum
Mal Mer Mol Nar Nel Nor Pal Pem Pol Ral Rem Ror Sal Sel Sum Tal Tem Tor Val Vem Vor Zal Zem Zor
"""
_TAILS = """
vak ven vik vos vur wad wen wib wos zan zek zin zof hax hed hib hom bax bek bin bov dax dep dim dov
kaz keb kin kov pas pex pid pov gath gez gim gov jad jek jov
"""
NAME_HEADS: tuple[str, ...] = tuple(_HEADS.split())
NAME_TAILS: tuple[str, ...] = tuple(_TAILS.split())

# Each line is one training string, so where lines end matters to the shipped vocabulary.
FILLER_TEXT = """
You are a helpful assistant who answers questions step by step. Think about the question first and keep your reasoning
inside the thinking tags. When some fact is missing, write a short search query between the search tags and wait: the
search tool will return passages inside the result tags. You may search several times, one fact at a time, before you
give the final answer inside the answer tags. Write the exact final answer in a box at the end. Here is an example of
how such a conversation between the user and the assistant might look. The user asks a question and the assistant
solves it. First the assistant thinks, then it looks for information, reads what was found, checks whether it is
enough, and goes on until everything needed is known. Do not invent facts, never write a result yourself, and always
close every tag that you open.
A large library holds thousands of books about history, science, music, sports, politics, nature and art. People visit
it every day to read newspapers, study old maps, watch films or meet friends. In the north of the country there are
high mountains, deep lakes and green valleys; in the south lie warm beaches, small islands and busy harbours. Many
companies build ships, cars, trains, computers, phones, furniture and clothes. Others sell bread, fruit, vegetables,
coffee, tea and flowers on the market square. Children go to school in the morning and play outside in the afternoon.
Teachers explain numbers, letters, languages and stories, while doctors and nurses help sick people in hospitals.
Farmers work in the fields during spring, summer and autumn, and rest a little in winter when snow covers the ground.
The president, the king, the queen and the minister speak on television about laws, money, health, energy and peace.
Engineers design bridges, towers, roads, airports and machines that measure temperature, pressure, speed and distance.
Musicians write songs for guitar, piano, violin and voice; painters use colour, light and shadow; actors learn long
parts by heart. Some years later a famous author won an important award for a novel about two brothers who crossed the
ocean alone. She was born in a quiet village, moved to the capital as a young woman, married twice, and died at the age
of ninety. Which team won the championship? When did the war begin, and who signed the treaty? Where does the river
start, how long is it, and which cities stand on its banks? Why is the sky blue? What language is spoken there? Whose
idea was it? Yes, no, maybe, both, neither, first, second, third, before, after, during, between, against, under, over.
Retrieved documents, corpus, index, server, client, network, software, data, model, training, reward, policy, token, \
batch,
memory, computer, keyboard, screen, button, message, email, address, number, list, table, picture, camera, radio.
Breakfast, lunch and dinner: rice, cheese, butter, chicken, potato, onion, tomato, orange, banana, lemon, sugar, \
salt, pepper.
January, February, March, April, May, June, July, August, September, October, November, December; Monday, Tuesday,
Wednesday, Thursday, Friday, Saturday and Sunday. Eleven, twelve, twenty, hundred, million, half, quarter, double.
European, American, African, Asian, English, French, German, Spanish, Italian, Chinese, Japanese, Russian, Indian, \
Greek, Roman.
Elephant, tiger, horse, sheep, rabbit, eagle, snake, spider, butterfly, whale, forest, desert, volcano, planet, galaxy.
Physics, chemistry, biology, mathematics, philosophy, religion, church, castle, museum, theatre, university, professor,
student, degree, research, theory, method, experiment, discovery, invention, industry, factory, railway, engine, \
electric.
Football, basketball, tennis, cricket, league, season, coach, captain, stadium, medal, record, victory, battle, \
soldier, army.
Album, band, singer, concert, record label, producer, screenplay, comedy, drama, thriller, episode, character, \
magazine.
"""
