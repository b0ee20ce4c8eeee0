"""Folders that MDSWriter of mosaicml-streaming 0.13.0 wrote: a zip file of each, in base 85.

ALL has a column of each encoding but pkl, and 3 samples: sample i is that of :func:`tests.formats.test_mds.sample`. FEW
has the columns text (str) and id (int) and 10 samples, {"text": "é" * i, "id": i}, in shards of a few, without
compression, with zstd and with gz. BR is FEW with brotli in one shard; PICKLED has a column x of pkl.
"""

from __future__ import annotations

import base64
import io
import zipfile
from pathlib import Path


def unpack(folder: Path, data: str) -> Path:
    """The folder, with the files of ``data`` in it."""
    with zipfile.ZipFile(io.BytesIO(base64.b85decode("".join(data.split())))) as files:
        files.extractall(folder)
    return folder


ALL = """
P)h>@6aWAK2mk;8AzY#714vB)006@R000UA003!jWMz0RYIARHbyCZY!Y~Z{l`3b1cyHBTK~)u+P`sN*l>`>3`tNHy1(n10kc{ndJY#hb@gjqYqAHGqX
uY{w*J#&z1+L?)a7u<CA7W96m_h?C5j;JTjs&K1b;ZK^P;C}l%6|8{Yu<gm>*$(Vsm6Eoj&1`n9g$Kq70hdr(k)o|4$sC*?q{&w5Tv2yM3{@gG!kmeOq
QIqI@^(sC7pmZD48U`33sg+1ZI-jHp>IfqmoV&usV127{{#mu1!V(TIK|qz_YB@2hKz^!cLODvx($?w2O0z5uRD1yBf17=I46z8JC~of9DQ6=b1dr_Cd
!8Xs()S;_QRP-B##Mv6G98mn^1cJHHJtswxI?l2Ow(iOv7caz)>A>dgN|RqS`W{rsU}9BB>G_J-pvMd-LOV1Y&-zSgU<JfLQA(_zwwzQq&z*L0FQ)}M^
=4^T@31QY-O00;m803lqIjRK5T1ONa<6#xJa0001UXkl_>E-)}KFfcA{WOHL?U|<MjVqiGW%D|w=!@%Gw%D_;ql$@VanwuA&nwOlPl9`uYtYoDSt(2FN
SX7i)sidQzR9sRNpP5$zVkT9Vq!xo1P-&}DpoF2Bm647yNHnV;H9a1#uOKfSL_xKJ<iK=sejbR<$t*631}cdKE6vP-*_4u+oSB;l=ceW4CxZ2Z8OBB+C
dg6?r~+ii0EK}HVu2!1FXbiXrb4`vm<M)JQYP39DTyVCU^6o-Qd7W;BCtx3Ym*_)%LI!9U6P&(V&tYmbQA#j#Sj-)q~<_aMVZN9HARUfnfYL6CFd7`MT
&tQ0sEvRwF2yklKkw{ykcZ07H3vLoS0XdlcS@6Od1-Y@-0xgxJVPAPGk{?Ww`}Ksl~;aK+jo0<&@I$i*kWsYX$UO3fLzZiNzTZ$AI*JTo#{`nVShxVrF
h=U}0efG+U`GwFqjCQLPFvK`}Bw01FWN0dYAnfpGz84j@*9iZeqo8xT8jFflO@0EQrAnSfeY7+ApqodJICyj)Tsb9p^IT!NtHF>!#55)%993#3FnT^vI
y<|IFPl8~MN21yN!42<s>WF(unHiAs?boFyt=akU&9|msxf50H%<>u+ez{m))5=i{N&EU+y!N$hU#>&CY&d$ln!NnuO%frphBPk@zFCr@?FDEM{Bcq_A
r>>x+qbwt%VXmoTU}$1uBCl>~Yhh%gXKZ2wGK7(nlaq&=M}n7E!bnj@(THU5{{Vv^2PhPn8I>5A1R0qH8UG()kO#Vxl@SbJp~c9=%)-jX&cVsW4OFmIf
PsmTnVE@&nU$3V82F5}KzRlhK~^C}Lq|5@z(jVXLJ_0Ji3>TDoi-j64Z8S2#W<;`iIYoATtZSxRZU$(Q_IBE%-q7#%Gt%$&E3P(D>x)HEIcAIDmf)JEj
=SMtGJ}Jth}PKs=1}Lt-YhOYtrN?Q>RUzF>}_U#Y>hhTfSoDs!f}>Y~8kf$Ie}c4j(ys?D&b3r!HN-a`oEv8#iw~eDwIq(`V0LynOZX)8{W=zkUDl^B2
fpj10_-Fo4xxf<S*Uv9K_+u!H=?$W#teAjrb1Xviky7|5PjD6C}E$RXl1apA^;oXW;QA4HRiE^>*fm^@Vd2=W@(XT*7|i7cPNJ%;etEe0NDU`iHb7G$t
z_)w*>Xu|pbH>;HrL7B`TwiXtH;Is^-gWR1sIoQ#Vp`NLMft~?a@!^#QEZ`7Qf$9Qr>X}e;UldaAgXKUjl-&2h9v5wBz=+6wY+&O-#*XHe(cCfsxrMq#
KP(lDCg#z^Ja9$7A*ASMgf^L|o5TrLCPv`O#K;sVZ_jvmr6CIw%rPoRb<r;t)EZ?Cmi8PUYJ1KB7j0-@z{G^8QP{y2fD9h3S4Okq0A<C|WH*}ZhJ15|a
kM!znwST?Ib#HA&M-lnGt_U=(7AzR3~nF++eZ!dOovw*u`t8hM<87QP)h*<6ay3h000O8001Feq2~igO#uJ^!vX*R3IG5A0000000000fB^si003!jWM
z0RYIARHP)h*<6ay3h000O8001Fel#K$6Rs;Y5MHK)54*&oF0000000000fB|&@0047nVRB?HFfcGMFfMImb5KhK1^@s600IC40CfNW0Qdy}0000
"""
FEW = """
P)h>@6aWAK2mk;8AzWY%`mf^v006ZG000UA003!jWMz0RYIARH?ULOJ!Y~YlUuEQ4M7s&%tB8!~sw=eJXgmML-rb~|pbP}P6Wz_oIZ1Q+(H4A(uJEu*)
-CKR-58royQ>Oi4^ahW156U|!NG?9Lytux2ftuD$a8q~y}I`Pa+26a>)tZ8lisV!lEW&A`^p&%RD+=yB$VjOew1e%p7H_%Qr*H9z2wE*9dl1-{7r|+?I
pxPk%`B1+OFgLXlfnnlq-stYh@H~7K<54N9l%SJbhL5eJ=;46TTJCe1s>>Uf~hHg-5*kdVUN~I>HmL`^VGc$wqj@%hxmi1kdKVqq_l6O9KQH00008000
0XTzop3)1CkT0P+9;01p5F0CQ+za%3(rFfcGME^TCUV`gArI03|0fcOy*e*)rarR4ma(%iiG)V$>Ul+3*JVkIkuXr;`&5+xl4rQ(tzrC1;hRg;&Pn+la
r0ZEsnR+J#i7iU&M<Sld*@=9}ZAX2#nMXANbnfZA@8IUMYFfG3*H?aiBSISK(2APzRSeyaT3ep2ICq5@LHxs19$kYHRRF+x<HNvQt0SPbxF(Z_HcqI!|
1j0MK5&%$30|XQR000O8001FevR}ANod5s;>Hq)$4*&oFb7*05WG*l;FfcJLZDey}Vqjo60>syV_!SUWD<$XWl;-Ber{*Q+r)1`(7b{sQL@Q<Hl_=>bC
>56!Da8V5sG7XQ+*GK13P`#nwW0)BzBscAB5$FikXM?M1Ch!tC`v6Z&dkpP%78?Hf@%3hxrrq}zEW;VG03Eh#NrHyR*)W$Iq^A}xtSm(My3Wpp|aE>s1
ZiBY(RH2GeE%Ml_1CgWU-)#99{_kP)h>@6aWAK2mk;8AzYNI-kO~N008m;000jF0047nVRB?HFfcGMGA?aob7Nv)U^oKAw}AK)5LYWD=jW8>=EbMxCFi
GP=A{=aSt&#-W#*MA=_n`_mlP?*0%@q4yu{p8sC)`Yx+Jxt1X;c~vkD?_p`(yjnv(;O$}K2LEiTT?&jZSUM1g{7`9-;jB|yGXZb~u8q>RMk42V{c9*{Z
lIhnbcASFho20)>*)FP-6Mzvf(ce64;z~PlJ$OGiDVTc}H2>?(_0|XQR000O8001FeC4L{}od5s;`Tzg`4*&oFb7*05WG*l;FfcPNZDey}Vqjo60>t-#
_!kgYD<$XWl;-Ber{*Q+r)1`(7b{sQL@Q<Hl_=>bC>56!Da8V5sG7XQ+*GK13P`#nwW0)BzBscAB5$FikXM?M1Ch!tC`v6Z&dkpP%78?Hf@%3hxrrq}z
EW;VG03Eh#NrHyR*)W$Iq^A}xtSm(My3Wpp|aE>s1ZiBd_Z@zGeE%MmB>&4D8hkN=I}}YP)h>@6aWAK2mk;8AzaXkWVMn2007<q000jF0047nVRB?HFf
cGMG%jsqb7N#+U^oE8_kg%sDLFr<G&e6kH7_|oB{MI*SjkEuS}8NHL`g?Msko#_DHcdW)#N4Srb6XYK++|t6(z{>#hFzQc?%tdywaQ;h*WMtQEG8<W_}
(}1|$j;Ov^9IO)LTOm2y*xK_+D+7H2@Tg7kpQiO<Q*%>*eiGBp4Sm8BLzjWDVe0=k=%0Rj%MM27%SO928D0~7!N00;m803lpp4*IX-0002B1pojF0000
0000000001h0RR910BLSyWq2-Xb8l`?O928D0~7!N00;m803lp_I-1j-0002;0000F00000000000001h0Sf^D0CQ+za%3(rFfcGME^TCUP)h*<6ay3h
000O8001FevR}ANod5s;>Hq)$4*&oF0000000000fC1J40047nVRB?HFfcGMF)nRnb5KhG0u%!j000080000XT$HNbnw<au0P+9;01p5F00000000000
Du9Y0ssJWXkl_>E-)}KFfuM}WOGnU0Rj{Q6aWAK2mk;8AzUSXALX3@008;`000jF0000000000004jiY6AcOb7*05WG*l;FfcPNZDey$O928D0~7!N00
;m803lq^ie$Bt0002q0000F00000000000001h0W<^v0CQ+za%3(rFfcGQE^TCUP)h{{000001^@;CX#oHL^8^3@000
"""
FEW_ZSTD = """
P)h>@6aWAK2mk;8AzV`@KEn<H002}7000UA003!jWMz0RYIARH<&xiOgD@1vUqy0VL=zS1tBfM2O*R8blqB6B#dlwhdg10)I*`KJ+=O$!eECj(q$jQh%
N^NAPdzy`>a0yA%&Fnhyo_BUjVHT^IB&@z?DH7|TFg2}*^76-)Sc`mz1&6Stkfjw)(YojV}e3D=lPzY`MI$gJoa=LB{XVq^<+n%g|~`>hfw$A2u@%)o*
rk96I}7^Jbw7mNV8&jPd^O!2GFe<Ylc-Au~Je?Os07fTCc*+)6r0Mvb`!d#+NL^(~^A)59$9IZ@R+E%1e0ZMtIX-@Fw?#m;UkhZiSaV241$pOX(%N=|*
_j&v=XCzVK#iyxA@AW{-h4U*j!qfj7Sv@8Rq1!zWNn0|XQR000O8001FehaB6vyZ`_Iw*UYD6aWAKb7*05WG*l;FfcGKZDeyUdUJGS0k;51|0uOD{UG*
r1px9$ASa+T=?~U>4?r1E)f&?tjcg0-mX{)An@kAlRUzU%XbvNzvgvLu1=1u<1ZjHUzu*xCsw34Z9F%q27>%~|>E>zXV&mXj7#0>gO0^`v?N-=utwF37
BHE4*jZ9s`YAF)NPPH=fW<o953|{seR)!tao|BOO0sjI1PyS2(4+0SYAb^^AfKhNWl#s_LyR8NUrZvqSH(LUD1+VZ1!x)N5D0_#>BoCpWP)h>@6aWAK2
mk;8AzVLrdD*!D006WA000yK0047nVRB?HFfcGMF)nRnb1r&wbYuav089TUwJ-f3?p*}{!pI*dkVWZ#`Fg;A;Qt?6(r_c&hPLI#2%D7&Nh33zs4p4M<a
f61Ya<2HH27bTrVIWPBns3=s%1bZ>$Wi(ZR^v`)6B)j!N)i(EOwM?Nq*a{(BWExSgk~~9U&T-x`x$SB#fPEW#mnTTCy9w>^ZCqJE%P;BmV>b1N@)-4+I
bZHBaXP#s^nI9;58G8W5P)G<V!=3E&mH!W#@@C?=uo9V(MLgn|N4O9KQH000080000XT#wL&Rk;8F0JH!A02BZK0CQ+za%3(rFfcGOE^TCUE_!oxWC64
QOaCafFa03)T?GKb$R8)5HR(UPx&f#GRZS1tqmgZa-SSd|Y?BEgy(&b!2hCw*)Qq6CD+SUt_+OBw3;q)%3e-ocWk4wFwlNxQ>(kBC%*DpR$2cr3c9d#K
e%r0k;aY=OtwgjPAsU&whSgdmjGby_<V}TIvKzeYIjjsjs68hm{{#L5{Ga>}1P}l@r_Mc$W3GfeM%isOATX_I?zq_!z$<u#HyFlHOhVZ^R3>!@1qDz`0
|XQR000O8001Fe7JpyLs{jB1rT_o{6aWAKb7*05WG*l;FfcPNZDeyUdUJGS0j2<1|0uOD{UF}$1OO5U9V4JA9shyV2>|$vZ8WkiXj@*2uvwW9vQ;7CFD
AlB3eoT_1(3)C{{;`lDI+lr3d*uwj7Hn~bn~=guVJnw2#b0hB`(QryVWh&S`cG0MBA^SPbq5{6C&N~#FURW54dD2cvW*)8D`LGPCEWi{!9J?0uKN=j`6
{jkjE&ytp)_9HO(D2TLO3mukZ%L7>Y?Kdxy#-4xyk>O9KQH000080000XTtW|6|EmB10Hy!{02BZK0CQ+za%3(rFfcGQE^TCUE_!oxWC5lCS^p@tFa03
k?F0Z42puD!DINcSRbN&4mu)n%EofU_im+Lk5VBPv;x8t`ND7=}KLwD;1OEjN#VI2(4GPM#U5rNC`gHTOVy|JYB?yap9VITwZM)Si*jf-{GDO?2p-(Am
7!xAh>%^3gHxIaED|l6NSQ%!}YEC--PyS2(0|E~KIf-%1m5|3MyR8NUrZvqSH(LUD1+VZ1!x)N5D0_#>Bo3jVP)h>@6aWAK2mk;8AzT9p5JRf~005={0
00yK0047nVRB?HFfcGMH7;#rb1r&wbYuah09pSiwJ-f3;_U<g5(ph5peY^ym;np`ygn^9vMp#^UW%|;nGmv7A>uD4!blnoH(Cmi$OHcc55*}XF%1gJvR
#Zu+xm3#v|_Jet|bVIdL1P$$!)vUE!bKRV=_eBuc1#VYZwzE-Rs1Zk2epvWGi@8b66Q>&}vRP{!ji({sRIJ06B#5!IhB5D7&o&1g1639XDG7cm=QU2E!
PNNho`V$|Me<pioNz0u%!j000080000XTvI1L!wvxe08|J7015yA00000000000Du7i0001KZe(S6E^2dcZcs}B0u%!j000080000XT!$Rnxx4@X0Ji`
D02BZK00000000000Du8D0RRAVXkl_>E-)}KFfcA{WOFWhb97`-O928D0~7!N00;m803lpIczM~m0002A0000K00000000000001h0VDzd0CQ+za%3(r
FfcGNE^TCUE_!oxWKc^10u%!j000080000XT#wL&Rk;8F0JH!A02BZK00000000000Du7x0{{SXXkl_>E-)}KFfuM}WOFWhb97`-O928D0~7!N00;m80
3lo!e_zV00001{0000K00000000000001h0r~>~0CQ+za%3(rFfcGPE^TCUE_!oxWKc^10u%!j000080000XTtW|6|EmB10Hy!{02BZK00000000000D
uA41ONbYXkl_>E-)}KFf=Z0WOFWhb97`-O928D0~7!N00;m803loh2oOW70001{0000K00000000000001h0kj1G0CQ+za%3(rFfcGRE^TCUE_!oxWKc
^51^@s600#gE0K@?R0Fed&0000
"""
FEW_GZ = """
P)h>@6aWAK2mk;8AzT#N=4=E3007qp000UA003!jWMz0RYIARH-IURagD?<9e?{iGNR76;?5`|ErZugBBubLDyNdtbOmv}JOKHJ<So0z?H#c`YgtTBwG
=+ta=(B}gC67wyT<@wv=tJm&&<++6SZ844zr!AliVu20vg2RwTDPL<_4h@jk5cxMstvbRRN5<WXvny)j6z4X@?-c$iMH&m<S}^83v}q~7Pe?P1=H>@cf
6z(56<nk3r3c)>vP(!qxn(QGSn$me!N@?B`BG#mcDi3W|)lJji{f>jr+g&iB8_uH_<-(zk*FhVAJdoST+&Z<Sy9Ne8937Z|qcH+1$aVBd`I~pMy>34mK
NsWe;y`G7;G99@zEmE7Wa%pWR&mP)h>@6aWAK2mk;8AzX-<996Xd006K6000sI0047nVRB?HFfcGMFfMImb1r9k0k8m1{~wD80E>GHYXbjcW?*1A0mN5
;_z@6)0^(|=<ouk{+`RbIyyX0p%)InsB`bw!rOdn%B^?E&;*uhzSRf5mlb4vA3YAX*NtdKnlpxC&XI4SvEp!y}N^^1`Qn>|1sl~;a`FTJYrSvM0#<cvR
+{6+PKR2ZqB#@C<oB`1a(gQLlJ|{Cb6Qsn*)Bq?{mRbZg!l;%32`~XMBb0r3B@0vp!aKYY0PR{X!14e908mQ<1QY-O00;m803lpf_w2;9000250000I0
001UXkl_>E-)}KFflG|WOFWOdI7HhQ2!r`2mp(F3Tp!YV`5-nI0D4ifcO;<S1Tpw=alB=#i!;a=ci=mr57t%DMTw}=9MVvC@2+|6e-05X{egK#N1S<d<
saqB(<UhS-v>43L<ZzqmWmclLL{;EhtJYF3!x)1Ij3+SAjI9<rn29mVo%VDa9axjKty$h*ppukU8-=nYo!DB}S$OK%uhKBB&8YwQN9lGc!QI;gulB0c5
eDh#X!C06H2>De3?K08mQ<1QY-O00;m803lpmx-oCG000250000I0001UXkl_>E-)}KFfuM}WOFWOdI7HhQ2!r`2mp(F3Tp!YV`5-nI0D4CfcO&-S1Tp
w=alB=#i!;a=ci=mr57t%DMTw}=9MVvC@2+|6e-05X{egK#N1S<d<saqB(<UhS-v>43L<ZzqmWmclLL{;EhtJYF3!x)1Ij3+SAjI9<rn29mVo%VDa9ax
jKty$h*ppukU8-=nYo!DB}S$OK%uhKBB&8YwOl}Vvob)y;gvAR1LUz`h#p=E02j^T)A9fS08mQ<1QY-O00;m803lqO!#i2D000250000I0001UXkl_>E
-)}KFf%S~WOFWOdI7HhQ2!r`2mp(F3Tp!YV`5-nI0D4?fcO^>S1Tpw=alB=#i!;a=ci=mr57t%DMTw}=9MVvC@2+|6e-05X{egK#N1S<d<saqB(<UhS-
v>43L<ZzqmWmclLL{;EhtJYF3!x)1Ij3+SAjI9<rn29mVo%VDa9axjKty$h*ppukU8-=nYo!DB}S$OK%uhKBB&8YwR}K#vok=z;g!fx04TzNRp#(Y0GV
^)Q2GD>08mQ<1QY-O00;m803lpg^Jg!q0001_0000I0001UXkl_>E-)}KFf=Z0WOFWOdI6*WTmK)62mp(F3Tp!YV`N}pH~_@=fVf&IIX|Z~H!nUlFF8L
YGcUbZ$x0zwDKoD`Nk>7cxTHua7Dz+Y<R#{&LgiCH(j}=CCCKu{nN<*Z3mt{L(wrQKRBl00YH@L9ejZRpDZL7$F)hC+H?ai7&rK-?31lP|XF#-q^nlEX
&&kZq1Sv5xH2?~gr4~VrFsc;-x|@>$0uHZ4hX8UGgLd8k002-+0Rj{Q6aWAK2mk;8AzT#N=4=E3007qp000UA0000000000004ji00000X>Md?crI#lZ
*EXa0Rj{Q6aWAK2mk;8AzX-<996Xd006K6000sI0000000000004jiECB!jb7*05WG*l;FfcGKZDeyUXL?Xe0Rj{Q6aWAK2mk;8AzW7X?8LMH006H500
0sI0000000000004ji5dr`Jb7*05WG*l;FfcJLZDeyUXL?Xe0Rj{Q6aWAK2mk;8AzWR$F>ka0006H5000sI0000000000004ji^#T9@b7*05WG*l;Ffc
MMZDeyUXL?Xe0Rj{Q6aWAK2mk;8AzYfnJ6W^<006H5000sI0000000000004ji*#iIob7*05WG*l;FfcPNZDeyUXL?Xe0Rj{Q6aWAK2mk;8AzWAUXD_J
$005)_000sI0000000000004jiy#xRNb7*05WG*l;FfcSOZDeyUXL?Xe1qJ{B000I61^{>g005Q+00000
"""
BR = """
P)h>@6aWAK2mk;8AzbU5YQ4k&004Ob000UA003!jWMz0RYIARHjgQ?5gD?z*Uqx~~M4dR<s|=B7yIE+fv~@og-+hfbaJyP>%E`$|zId=58fM`fT|BhC9
F?xQZhI#5ZK;CL4h|7mXP^rI)}vAJ&1Ymg{&aiaifQ%BL!?J3S4$0sTPu1U9B2#$uf0*|NUMMm3LV;RjZ((oqh{zZXb%lqPK&8~;f@n}@s?~}ZVBf3aX
-h;Gx4Ju<f7ArWZ<i%P=Zz$r!*<cA`kUDHyd9T)Fg(#w#Vx&AAl?=egNj`d-nVWP)h>@6aWAK2mk;8AzV$PZ%xwx007Pa000sI0047nVRB?HFfcGMFfM
Imb1q_X0nPw1{~NjiATA2*<`@M(Sj`RejOPbW?)bO6{u*!s2_=|76hZTV!;G320B%<#$+jZ^{+rvD+UMm9Dl(6yDl(82gNEIz@V(o{NS7|eif><nZm$1
StUyWDVzneewn<>@?J*Ti>4yX!e3ZG=mV2J-3?g4`L_P&oC(k!A5p!^v%*bvxIl7R*v?!pan+A{DvDKR-_wbGSQ03cWGkM{S8==nDpBJjiu`cdqH}MkX
x&7(%A5Yxx7NTg#R#0pL)wZLt8_?QM=o}X49hU%5O928D0~7!N00;m803lrKn`*tp0001a0RR9B00000000000001h0RR910BLSyWq2-Xb8l`?O928D0
~7!N00;m803lpWqi;>q0002a0000I00000000000001h0qg((0CQ+za%3(rFfcGME^TCUE@E;}O9ci10000200IDb0002*0RR9100
"""
PICKLED = """
P)h>@6aWAK2mk;8AzV9tl;x`c001ii000UA003!jWMz0RYIARHRgT*VgD?<8e?{_KL`zZWuN0A0(;AwKWVIJV{=FNcVDmO-b~57_4q$s^*W~6{XXLDO!
*yqRp&u({<5RNwl<cMk#iQ{#ViZfndX_SBHCm1+j3yi?!Mm{vCeln%CxHQQh`Erl@NRmTfV5*RAP;5XdL5Z&;iX%${Z4Bzugc>;&U=ywYLw9qincXUC=
r^AGS8~2xDbDFyUjb3TEw`Qhqb=`zwkd$O9KQH000080000XT>3mqSB3xp0J{JH01p5F0CQ+za%3(rFfcGME^TCUV`N}p*aXD8fw)>JIX|Z~H!nUlFF8
LYGcUbZ$x0zwsUSN?DON`TCYhI*n+lPrKo%~}tbz#VmFDC?#B&RZQj3c-^YehhAW@)TT7FS(VhND1l$%nl1Qf_fEY5)F1L*-75}%Wqn+Z~4W^QO;VPR$
h6fa9Hf|_Gg%L;U91B*AK9sp2F0Rj{Q6aWAK2mk;8AzV9tl;x`c001ii000UA0000000000004ji00000X>Md?crI#lZ*EXa0Rj{Q6aWAK2mk;8Azb=A
OIL;f006rH000jF0000000000004ji(*OVfb7*05WG*l;FfcGKZDey$O9ci10000200IDY0001n0RR9100
"""
